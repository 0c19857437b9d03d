from .host import Groups, Host, StreamInfo
from .network import Checked

__all__ = ["Checked", "Groups", "Host", "StreamInfo"]
