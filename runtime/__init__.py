"""The runtime: computes a model's logits, to generate text and to measure quality.

`graph` builds a model's list of operations, and has the executors that run it: one for whole texts, and a compiled one
for a few tokens. `layer` has what every operation gets: a layer's tensors, the network's numbers, the pass. `mixers`,
`experts` and `feed_forward` compute the larger operations; `embedding` comes before the layers, `head` after them.
`model.Model` owns it all.

`products` multiplies with quantized weights; `rope`, `ops` and the numba kernels in `kernels` are below that.
`kv_cache` holds keys, values and states of earlier tokens. `evaluation` and `importance` measure a model, `sampling`
selects tokens. `memory` computes what llama.cpp allocates for a model. Nothing here is global: threads, precision and
observers belong to a `Model`.
"""
