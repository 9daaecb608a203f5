"""Show what `divergence` measured: an HTML page, and a table for a model card."""
