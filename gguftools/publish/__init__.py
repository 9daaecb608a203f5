"""Make what is published with a model: reports and cards."""
