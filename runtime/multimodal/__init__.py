"""Encoders run from mmproj files: images as pixels in, embeddings of the text model out."""
