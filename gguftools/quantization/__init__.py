"""Which format each tensor gets: recipes, importance matrices, and the plan of an output."""
