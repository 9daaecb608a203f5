"""Random comparison with transformers: `make verify` (needs the extra `verify`)."""
