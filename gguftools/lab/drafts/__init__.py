"""Measure how well a draft model, MTP layers or prompt lookup draft for a model."""

from .check import draft_check
from .report import AtTemperature, DraftCheckReport, DraftFigures

__all__ = ["AtTemperature", "DraftCheckReport", "DraftFigures", "draft_check"]
