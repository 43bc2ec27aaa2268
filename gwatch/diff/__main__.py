"""``python -m gwatch.diff``: the same as ``gwatch diff``."""

from gwatch.cli.main import run_command

if __name__ == "__main__":
    import sys

    raise SystemExit(run_command("diff", sys.argv[1:], "python -m gwatch.diff"))
