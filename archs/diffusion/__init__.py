"""Image and video models (diffusion transformers and U-Nets) as GGUF files.

A file of one has the names and shapes of the weights as they were published, and a tag in `general.architecture` by
which ComfyUI-GGUF knows it. `families` has a module for each family.
"""
