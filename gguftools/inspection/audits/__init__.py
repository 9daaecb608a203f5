"""The rules of `gguftools audit`: what a file could do to whoever loads it. Each module looks at one kind of thing."""
