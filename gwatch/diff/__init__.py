"""Instruction-aligned comparison of cubins, libraries and packages: ``python -m gwatch.diff A B``."""
