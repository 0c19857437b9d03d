"""What a backbone is, and the modules that the paper adds to one."""

from opentta.models.backbone import Backbone, Trace
from opentta.models.wrap import wrap

__all__ = ["Backbone", "Trace", "wrap"]
