"""Run encoders from mmproj files: pixels or audio in, embeddings for the text model out."""
