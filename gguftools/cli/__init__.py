"""Define the command line: arguments, help, progress, tables, errors as one line."""
