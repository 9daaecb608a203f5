"""Hugging Face checkpoints: folders and the hub, safetensors and PyTorch's pickles."""
