"""The runtime: computes a model's logits, to generate text and to measure quality.

`graph` writes a model down as a list of operations, and has the executors that run it: over whole texts, and
compiled, over a few tokens. `layer.py` (tensors of a layer, numbers of a network, a pass) is what every operation is
handed; `self_attention`, `latent_attention`, `indexer`, `recurrence`, `feed_forward`, `experts` hold arithmetic of
larger ones, between `embedding` and `head`; `model.Model` owns it all. Below the parts: `matmul` (products with
quantized weights, at the `precision` of a pass), `attention`, `rope`, `ops`, and numba in `kernels/`. Keys, values and
states of tokens seen so far: `kv_cache`. Above the model: `perplexity`, `divergence`,
`importance`. Choosing tokens: `sampling`. Nothing here is global: threads, precision and what observes belong to a
`Model`.
"""
