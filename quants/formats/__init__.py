"""One file a format; see `quants.format` for what each must hold."""
