"""numba kernels and the threads they run in; plain numpy around them is in the modules above."""

from quants.kernels.numba_settings import drop_unusable_threads

drop_unusable_threads()  # before numba is imported
