"""Hyperparameters of a model: keys of config.json and of GGUF files, and the values read from them."""
