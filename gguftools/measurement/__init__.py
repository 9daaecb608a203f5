"""Measure models: perplexity, KL divergence, benchmarks, importance matrices."""
