"""Put a model together from layers and experts of others."""

from .assembly import GraftOptions, GraftReport, graft
from .expert_choice import ExpertOptions

__all__ = ["ExpertOptions", "GraftOptions", "GraftReport", "graft"]
