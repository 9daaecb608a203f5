"""Speculative decoding: several tokens are drafted cheaply and checked by the model in one pass."""
