"""Read and write objects of stores by URL: ranges are read, parts are written, and nothing is copied to this disk."""
