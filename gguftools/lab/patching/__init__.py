"""Write the difference of two GGUF files as a patch, and apply it."""

from .patches import apply_patch, make_patch, patch

__all__ = ["apply_patch", "make_patch", "patch"]
