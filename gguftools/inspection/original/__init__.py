"""Compare a GGUF file with its original: tokenizer, template, weights, outputs."""
