"""One file a family and its close relatives; `archs.registry` finds them."""
