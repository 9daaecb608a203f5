"""Expert features, each a package with one door: what its `__init__` names."""
