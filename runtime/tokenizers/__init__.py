"""Tokenizers, one module for each vocabulary type: text without special tokens to ids, and ids to bytes."""
