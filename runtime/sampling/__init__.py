"""Choosing the next token: small functions of logits and history, and the chain they stand in.

`candidates` is what each function takes and returns; `bias`, `penalties`, `dry`, `truncation`, `temperature`,
`mirostat` and `adaptive` hold one sampler each, or a few that are alike. `parameters.Sampling` has all numbers with
llama.cpp's defaults, `sampler.Sampler` the state between tokens. A `grammar` says which tokens may come next.
"""
