from .host import Host, StreamInfo

__all__ = ["Host", "StreamInfo"]
