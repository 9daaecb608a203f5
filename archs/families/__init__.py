"""One file a family; `archs.registry` finds them."""
