"""Whether a file that was made says what the model says that it was made of."""
