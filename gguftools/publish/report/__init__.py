"""What `divergence` measured, for people: a page of HTML, a table for a model card."""
