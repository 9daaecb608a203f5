"""numba kernels that several formats share."""

from .numba_settings import drop_unusable_threads

drop_unusable_threads()  # before numba is imported
