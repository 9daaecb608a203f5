"""The terminal: arguments, help, progress, tables, errors as one line."""
