"""The rules of `gguftools audit`; each module has the rules for one part of a file."""
