"""Write model cards: front matter, blocks made from measured results, and what Ollama reads."""
