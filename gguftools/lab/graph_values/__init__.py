"""Compute the value of each node of a model's graph, and compare it with another run's.

For whoever debugs a conversion or a new architecture: it finds the first node that differs from another GGUF file,
saved values, the checkpoint in transformers, or a log of llama-eval-callback, and names the weights and numbers that it
depends on. Command: `gguftools graph --values`, `--save` and `--against`; page: docs/graph.md.
"""

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
