"""Combine tensors and keys of several GGUF files, and drop or merge experts; stored bytes stay as they are.

For whoever edits models: takes a tokenizer, MTP layers or tensors from a donor, drops layers, and prunes experts by
REAP scores or an importance matrix. Command: `gguftools graft`; page: docs/graft.md.
"""

from .assembly import GraftOptions, GraftReport, graft
from .expert_choice import ExpertOptions

__all__ = ["ExpertOptions", "GraftOptions", "GraftReport", "graft"]
