"""From tensors to files: tasks over ranges of rows, resuming, and the report of what was written."""
