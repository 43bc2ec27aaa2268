"""Two readers of instruction text: the grammar's tree (snippets, listings) and the flat cut (ISA tables). They must see
the same instruction in every line that either of them may meet."""

from __future__ import annotations

from pathlib import Path

from gwatch.sass.isa import lex
from gwatch.sass.operand import BarrierSet, Constant, Core, Immediate, Memory, Name, Operand, Register
from gwatch.sass.shape import parse_value
from gwatch.sass.syntax import Line, parse

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
FILES = {"R": "R", "U": "UR", "P": "P", "Q": "UP", "B": "B", "S": "SB"}


def values_of(operand: Operand) -> list[str]:
    """Registers, numbers and names of an operand, in the order written."""
    core: Core = operand.core
    if isinstance(core, Memory):
        parts = [*(core.descriptor.terms if core.descriptor else ()), *core.address.terms]
        return [value for part in parts for value in values_of(part)]
    if isinstance(core, Constant):
        return [value for part in (core.bank, *core.address.terms) for value in values_of(part)]
    if isinstance(core, Name):
        return [".".join([core.text, *operand.suffixes])]
    assert isinstance(core, Register | Immediate | BarrierSet), core
    return [str(core)]


def by_tree(line: Line) -> tuple[str, str, list[str]]:
    guard = "" if line.guard is None else str(line.guard).strip()
    return guard, line.opcode, [value.strip() for operand in line.operands for value in values_of(operand)]


def by_cut(text: str) -> tuple[str, str, list[str]]:
    cut = lex.cut(text)
    guard = ""
    if cut.guard is not None:
        negated, uniform, index = cut.guard
        guard = f"@{'!' if negated else ''}{'U' if uniform else ''}P{index}"
    return guard, ".".join(cut.opcode), [value.strip() for _, value in cut.values]


def test_both_readers_see_the_same_instruction_in_every_golden_line() -> None:
    seen = 0
    for path in sorted(GOLDEN.glob("isa_*.txt")):
        for row in path.read_text(encoding="utf-8").splitlines():
            if row.startswith("#"):
                continue
            text = row.split(" ;")[1].strip(" ")
            tree, cut = by_tree(parse(text)), by_cut(text)
            assert tree == cut, text
            for kind, value in lex.cut(text).values:
                if kind in FILES:
                    assert value.startswith(FILES[kind]), (text, value)
                elif kind == "I":
                    assert isinstance(parse_value(value), int), (text, value)
            seen += 1
    assert seen > 700
