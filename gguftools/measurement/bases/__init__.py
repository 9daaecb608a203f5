"""Bases of `divergence`: the predictions of a model, stored in a file of our format or of llama-perplexity's."""
