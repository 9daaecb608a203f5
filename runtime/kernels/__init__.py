"""numba kernels and the threads they run in; plain numpy around them is in the modules above."""
