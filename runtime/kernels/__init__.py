"""numba kernels and their threads; the modules above wrap them in numpy."""

from quants.kernels.numba_settings import drop_unusable_threads

drop_unusable_threads()  # before numba is imported
