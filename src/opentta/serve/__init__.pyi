from .host import Checked, Groups, Host, StreamInfo

__all__ = ["Checked", "Groups", "Host", "StreamInfo"]
