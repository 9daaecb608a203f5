"""What a model is: families as data, Hugging Face → GGUF, vocabularies."""
