"""Where packaged data (ISA tables, grammars) lives: inside the wheel, or at the top of a source checkout."""

from __future__ import annotations

from pathlib import Path

from gwatch.errors import ToolError

_PACKAGE = Path(__file__).resolve().parent


def resource(kind: str, name: str) -> Path:
    """Path of data file ``name`` of ``kind`` ("isa" or "grammars").

    Raises ToolError ``[resource-missing]`` when neither the installed package nor the checkout has it.
    """
    for root in (_PACKAGE / "_data" / kind, _PACKAGE.parent / kind):
        path = root / name
        if path.exists():
            return path
    raise ToolError(
        "resource-missing",
        f"{kind}/{name} is not in this installation of gwatch",
        "reinstall gwatch-sass, or run from a complete checkout",
    )
