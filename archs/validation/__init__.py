"""Check that the keys and tensors of a file belong together."""
