"""Expert features. Each package has one door, its `__init__`: nothing outside imports its other modules.

| package | feature | command | page |
|---|---|---|---|
| `drafts` | measure what speculative decoding would gain | `draft-check` | docs/draft-models.md |
| `gpu_split` | place neurons of a PowerInfer model on the GPU | `gpu-split` | docs/powerinfer.md |
| `grafting` | combine parts of models, drop or merge experts | `graft` | docs/graft.md |
| `graph_values` | find the first node at which two runs differ | `graph --values`, `graph --against` | docs/graph.md |
| `patching` | distribute a new version of a model as a delta | `patch` | docs/graft.md |
| `reproduction` | attest how a file was made, and make it again | `attest`, `reproduce` | docs/provenance.md |
"""
