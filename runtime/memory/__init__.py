"""What llama.cpp allocates to run a model: caches, states and compute buffers, computed from metadata and shapes."""
