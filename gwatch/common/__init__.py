"""Parts that know nothing of CUDA."""
