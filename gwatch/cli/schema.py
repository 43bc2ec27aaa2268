"""``gwatch schema NAME``: the JSON Schema of what gwatch writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SCHEMAS = {"trace": "common/format/trace.schema.json", "show": "cli/show.schema.json", "inspect": "inspect/schema.json",
           "diff": "diff/schema.json"}
_SHARED = "trace.schema.json#"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="trace: reports (File.render, -o FILE.json); "
                        "show, inspect, diff: what these commands print with --json")
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
    """The text of a packaged schema; what it takes from that of reports is part of it."""
    text = _packaged(name)
    return _whole(json.loads(text)) if _SHARED in text else text


def _packaged(name: str) -> str:
    return (Path(__file__).resolve().parents[1] / SCHEMAS[name]).read_text(encoding="utf-8")


def _whole(schema: dict[str, Any]) -> str:
    schema["$defs"] = {**json.loads(_packaged("trace"))["$defs"], **schema.get("$defs", {})}
    return json.dumps(schema, indent=1).replace(_SHARED, "#") + "\n"
