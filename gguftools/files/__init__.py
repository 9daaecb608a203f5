"""Reading and writing files: GGUF, checkpoints, atomic output."""
