"""A model as a graph: a list of operations, built once at loading, then shown, checked, and run by executors.

`operations` has the closed set of operations, `layers` builds the graph of a model, `text` runs it over whole texts.
Nodes are named as llama.cpp names intermediate values (`attn_norm-0`, `Qcur-0`, `ffn_out-3`, `result_norm`).
"""
