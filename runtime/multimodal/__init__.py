"""Towers run from mmproj files: pictures as pixels in, embeddings of the text model out."""
