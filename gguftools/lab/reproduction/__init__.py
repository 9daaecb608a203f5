"""Attest how a file was made, and make it again from its source to verify that.

For publishers and for whoever checks their files: writes and verifies in-toto statements, and encodes tensors again to
compare them byte by byte. Commands: `gguftools attest` and `reproduce`; page: docs/provenance.md.
"""

from .attestations import Attestation, Provenance, Verification, attest, verify_attestation
from .report import Reproduction, TensorCheck, few_lines
from .rerun import Selection, reproduce

__all__ = [
    "Attestation",
    "Provenance",
    "Reproduction",
    "Selection",
    "TensorCheck",
    "Verification",
    "attest",
    "few_lines",
    "reproduce",
    "verify_attestation",
]
