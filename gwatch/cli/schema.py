"""``gwatch schema NAME``: the JSON Schema of what gwatch writes."""

from __future__ import annotations

import argparse
from pathlib import Path

SCHEMAS = {"trace": "common/format/trace.schema.json", "inspect": "inspect/schema.json", "diff": "diff/schema.json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="trace: reports (File.render, .json); "
                        "inspect, diff: what these commands print with --json")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there, not to standard output")
    parser.add_argument("--json", action="store_true", help="the schema is JSON either way")


def run(args: argparse.Namespace) -> int:
    """Print the schema; UsageError ``[schema-unknown]``."""
    from gwatch.cli.output import put
    from gwatch.errors import UsageError
    if args.name not in SCHEMAS:
        raise UsageError("schema-unknown", f"there is no schema {args.name!r}", "the schemas are " + ", ".join(SCHEMAS),
                         candidates=SCHEMAS)
    put(schema_text(args.name), args.output)
    return 0


def schema_text(name: str) -> str:
    """The text of a packaged schema."""
    return (Path(__file__).resolve().parents[1] / SCHEMAS[name]).read_text(encoding="utf-8")
