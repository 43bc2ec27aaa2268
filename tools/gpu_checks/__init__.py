"""What gpu_check.py runs on the GPU: each check returns the figures it measured or raises AssertionError."""
