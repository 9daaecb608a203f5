"""GGUF files: reading, writing and editing them in place."""
