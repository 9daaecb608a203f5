"""Choose the format of each tensor: recipes, importance matrices, and plans of outputs."""
