"""A model as a list of operations: built once when it is loaded, shown, checked, and computed by executors.

`operations` has the closed set of operations, `layers` writes them down for a model, `text` computes them over whole
texts. Nodes are named as llama.cpp names intermediate values (`attn_norm-0`, `Qcur-0`, `ffn_out-3`, `result_norm`).
"""
