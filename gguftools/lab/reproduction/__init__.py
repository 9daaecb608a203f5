"""Attest how a file was made, and make it again from its manifest."""

from .attestations import Attestation, Verification, attest, verify_attestation
from .findings import Reproduction, TensorCheck, few_lines
from .rerun import Selection, reproduce

__all__ = [
    "Attestation",
    "Reproduction",
    "Selection",
    "TensorCheck",
    "Verification",
    "attest",
    "few_lines",
    "reproduce",
    "verify_attestation",
]
