"""Open models: sources of every kind, metadata, tensors, generation and chat."""
