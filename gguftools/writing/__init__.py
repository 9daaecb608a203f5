"""Write files from tensors: tasks over ranges of rows, resuming, and reports."""
