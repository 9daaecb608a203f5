"""Hyperparameters of a model: keys of config.json and of GGUF files, and what is read from them."""
