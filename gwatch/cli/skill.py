"""``gwatch skill``: the page that tells a coding agent when and how to use gwatch."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there, not to standard output")


def run(args: argparse.Namespace) -> int:
    """Print the page."""
    from gwatch.cli.output import put
    put(skill_text(), args.output)
    return 0


def skill_text() -> str:
    """The text of the packaged page (Markdown with a YAML head)."""
    return (Path(__file__).resolve().parent / "SKILL.md").read_text(encoding="utf-8")
