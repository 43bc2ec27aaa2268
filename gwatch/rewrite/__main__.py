"""``python -m gwatch.rewrite``: the same as ``gwatch rewrite``."""

from gwatch.cli.main import run_command

if __name__ == "__main__":
    import sys

    raise SystemExit(run_command("rewrite", sys.argv[1:], "python -m gwatch.rewrite"))
