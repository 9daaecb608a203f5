"""Measure how much faster a model generates text with a draft model, MTP layers or prompt lookup.

For whoever chooses or trains a draft: it reports acceptance at each temperature, the best draft length, the predicted
speed-up and a simulation of decoding. Command: `gguftools draft-check`; page: docs/draft-models.md.
"""

from .check import draft_check
from .options import TEMPERATURES, DraftCheckOptions
from .report import DraftCheckReport, DraftFigures, TemperatureFigures

__all__ = ["TEMPERATURES", "DraftCheckOptions", "DraftCheckReport", "DraftFigures", "TemperatureFigures", "draft_check"]
