"""Pure measures, and the meter that accumulates them along a stream.

Names are loaded when they are first used: only the meter needs torch, and a report must not
import it.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
