"""Convert, quantize, export, split and merge models."""
