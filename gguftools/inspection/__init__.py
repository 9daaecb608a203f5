"""What a file holds and whether it is sound: show, diff, validate, audit, hash."""
