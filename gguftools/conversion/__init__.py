"""From a model to files: convert, quantize, export, split and merge."""
