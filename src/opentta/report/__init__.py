"""Tables, figures and one page, from stored results alone; nothing here needs torch."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
