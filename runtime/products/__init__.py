"""Matrix products: whole texts, a few tokens, integers, precision and rounding."""
