"""Write the difference of two versions of a model as a delta, and apply it to the old one.

For whoever publishes or mirrors new versions: byte ranges that both versions share are copied, on a disk or inside a
store, and both versions are verified by their SHA-256. Command: `gguftools patch make` and `patch apply`; page:
docs/graft.md.
"""

from .patches import apply_patch, make_patch, patch

__all__ = ["apply_patch", "make_patch", "patch"]
