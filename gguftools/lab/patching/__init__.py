"""Write the difference of two GGUF files as a patch, and apply it."""

from .patches import apply_patch, check_action, make_patch

__all__ = ["apply_patch", "check_action", "make_patch"]
