"""Speculative decoding: several tokens are drafted cheaply and verified by the model in one pass."""
