"""Measure models: perplexity, divergence, choices, pooling, stored outputs."""
