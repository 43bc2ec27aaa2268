"""``gwatch rewrite``: see :mod:`gwatch.rewrite.cli`."""

from gwatch.rewrite.cli import add_arguments, run

__all__ = ["add_arguments", "run"]
