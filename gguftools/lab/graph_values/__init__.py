"""Compute values of a model's graph, and compare them with another engine's."""

from .comparison import TOLERANCE, Cause, Comparison, NodeDifference, compare_values
from .values import NodeValues, check_output, node_values, summary

__all__ = [
    "TOLERANCE",
    "Cause",
    "Comparison",
    "NodeDifference",
    "NodeValues",
    "check_output",
    "compare_values",
    "node_values",
    "summary",
]
