"""Sampling the next token: small functions of logits and history, and the chain that calls them.

Each function takes and returns `candidates`; `penalties`, `dry`, `truncation`, `temperature`, `mirostat` and `adaptive`
hold one sampler each, or a few similar ones. `parameters.Sampling` has all numbers with llama.cpp's defaults,
`sampler.Sampler` the state between tokens. A `grammar` restricts the next tokens.
"""
