"""What a model computes: perplexity, importance, logits beside the original's."""
