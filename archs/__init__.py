"""Models: families as data, conversion from Hugging Face to GGUF, vocabularies."""
