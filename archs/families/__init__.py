"""Model families, one module each with its close relatives; `archs.registry` discovers them."""
