"""``gwatch skill``: the page that tells a coding agent when and how to use gwatch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there, not to standard output")
    parser.add_argument("--json", action="store_true", help="the page as a JSON object with its name")


def run(args: argparse.Namespace) -> int:
    """Print the page."""
    from gwatch.cli.output import put
    text = skill_text()
    put(json.dumps({"name": "gwatch", "text": text}) + "\n" if args.json else text, args.output)
    return 0


def skill_text() -> str:
    """The text of the packaged page (Markdown with a YAML head)."""
    return (Path(__file__).resolve().parent / "SKILL.md").read_text(encoding="utf-8")
