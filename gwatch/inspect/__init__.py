"""What is in a cubin, library, package, wheel, cache or directory; vectorisation; rules for CI. No GPU."""
