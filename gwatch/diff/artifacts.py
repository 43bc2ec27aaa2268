"""Two artifacts side by side: kernels matched by name, each pair compared."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gwatch.cuda.binary import KernelDef
from gwatch.cuda.binary.nvinfo import OFFSET_SHAPES, Attr
from gwatch.diff.compare import CodeDiff, Fate, Step, compare_code
from gwatch.diff.items import Item, control_changes, items_of
from gwatch.errors import CubinError, GWatchError, naming
from gwatch.inspect.artifacts import Image, Skipped, open_artifact
from gwatch.inspect.demangle import demangle
from gwatch.inspect.facts import KernelFacts, kernel_facts
from gwatch.inspect.patched import leave_out_copy
from gwatch.inspect.view import CubinView

_HOLDS_OFFSETS = frozenset({*OFFSET_SHAPES, Attr.INDIRECT_BRANCH_TARGETS, Attr.COOP_GROUP_MASK_REGIDS})
_HOLDS_SYMBOLS: dict[Attr, int | None] = {Attr.PARAM_CBANK: 1, Attr.EXTERNS: None}
"""Attributes whose first words (None: all) are numbers in the symbol table."""
FAILURES = ("registers", "spill", "vector-width", "any")


@dataclass(slots=True)
class Version:
    """A kernel in one of the artifacts. ``patched``: what gwatch put into it and what of it is compared, in words."""

    path: str
    view: CubinView
    kernel: KernelDef
    patched: str = ""

    @property
    def arch(self) -> str:
        return self.view.arch.name


@dataclass(frozen=True, slots=True)
class Change:
    """A number or text that differs."""

    name: str
    before: Any
    after: Any


@dataclass(slots=True)
class KernelDiff:
    """One kernel on both sides, or on one (then ``code`` is None). ``items`` are the instructions compared."""

    name: str
    first: Version | None
    second: Version | None
    code: CodeDiff | None = None
    resources: list[Change] = field(default_factory=list)
    mix: list[Change] = field(default_factory=list)
    attributes: list[Change] = field(default_factory=list)
    items: tuple[list[Item], list[Item]] = field(default_factory=lambda: ([], []))

    @property
    def second_name(self) -> str:
        """The kernel's name in the second artifact, or in the only one that has it."""
        return self.name if self.second is None else self.second.kernel.name

    @property
    def verdict(self) -> str:
        """In words: only in one, identical code, same instructions, changed."""
        if self.first is None:
            return "only in the second"
        if self.second is None or self.code is None:
            return "only in the first"
        return self.code.verdict

    @property
    def differs(self) -> bool:
        """Whether anything at all differs."""
        return self.verdict != "identical code" or bool(self.resources or self.attributes)

    def fails(self, what: str) -> bool:
        """Whether the second version is worse in ``what`` (one of FAILURES)."""
        if what == "any":
            return self.differs
        change = next((c for c in self.resources if c.name == _MEASURE[what]), None)
        if change is None or change.before is None or change.after is None:
            return False
        return bool(change.after < change.before if what == "vector-width" else change.after > change.before)


_MEASURE = {"registers": "registers", "spill": "spills", "vector-width": "share of 128-bit global accesses"}


@dataclass(slots=True)
class ArtifactDiff:
    """All kernels of two artifacts, in the first one's order, then those only in the second. ``problems``: cubins
    that could not be read, named; ``unread_differ``: whether the two sides' have other bytes; ``unread``: whether there
    may be kernels whose bytes could not even be had (a damaged archive, a missing decompressor)."""

    kernels: list[KernelDiff]
    problems: list[Skipped]
    unread_differ: bool = False
    unread: bool = False

    @property
    def differs(self) -> bool:
        """Whether any kernel differs, or the bytes of what can't be read."""
        return self.unread_differ or any(kernel.differs for kernel in self.kernels)


def compare(first: str | os.PathLike[str], second: str | os.PathLike[str], kernels: str = "") -> ArtifactDiff:
    """Compare two artifacts of any kind; ``kernels``: regular expression for (de)mangled names.

    Kernels are matched by name and architecture; if each side has one architecture only, by name. Of several
    with one name, those with the same code are paired first, then in order. Where each side has one kernel, the two are
    compared whatever their names. Raises CubinNotFound, CubinError
    [nothing-to-compare] when a side has no readable cubin.
    """
    problems: list[Skipped] = []
    unread: tuple[set[bytes], set[bytes]] = set(), set()
    left, right = (
        _versions(first, problems, unread[0], kernels),
        _versions(second, problems, unread[1], kernels),
    )
    for path, versions in ((first, left), (second, right)):
        if not versions:
            name = os.fspath(path)
            what = f"{name} has no kernel to compare" + (f" like {kernels!r}" if kernels else "")
            why = [item.reason for item in problems if item.path.startswith(str(Path(name)))]
            raise CubinError(
                "nothing-to-compare",
                f"{what}: {why[0]}" if why else what,
                "`gwatch inspect` tells what is in it",
            )
    across = len({v.arch for v in left}) == 1 == len({v.arch for v in right})
    alone = len(left) == 1 == len(right)
    matched = [(left[0], right[0])] if alone else _matched(left, right, across)
    pairs = [compare_kernels(a, b) for a, b in matched]
    return ArtifactDiff(pairs, problems, unread[0] != unread[1], any(item.unread for item in problems))


def _versions(
    path: str | os.PathLike[str], problems: list[Skipped], unread: set[bytes], pattern: str
) -> list[Version]:
    from gwatch.inspect.run import Request

    request = Request(pattern)
    out: list[Version] = []
    seen: set[bytes] = set()
    for item in open_artifact(path):
        if isinstance(item, Skipped) and item.unread:
            problems.append(item)
        if not isinstance(item, Image) or item.data in seen:
            continue
        seen.add(item.data)
        try:
            view = CubinView.of(item.data, item.path)
            patched = leave_out_copy(view)
            out += [
                Version(item.path, view, k, patched.get(k.name, ""))
                for k in view.kernels
                if request.wants(k.name)
            ]
        except GWatchError as error:
            unread.add(hashlib.sha256(item.data).digest())
            problems.append(Skipped(item.path, str(error)))
    return out


def _matched(
    left: list[Version], right: list[Version], across: bool
) -> Iterator[tuple[Version | None, Version | None]]:
    def key(version: Version) -> tuple[str, str]:
        return version.kernel.name, "" if across else version.arch

    there: dict[tuple[str, str], list[Version]] = defaultdict(list)
    for version in right:
        there[key(version)].append(version)
    here: dict[tuple[str, str], list[Version]] = defaultdict(list)
    for version in left:
        here[key(version)].append(version)
    for name, versions in here.items():
        others = there.pop(name, [])
        rest = []
        for version in versions:
            code = version.kernel.words.tobytes()
            same = next((o for o in others if o.kernel.words.tobytes() == code), None)
            if same is None:
                rest.append(version)
            else:
                others.remove(same)
                yield version, same
        for number, version in enumerate(rest):
            yield version, others[number] if number < len(others) else None
        for version in others[len(rest) :]:
            yield None, version
    for versions in there.values():
        for version in versions:
            yield None, version


def compare_kernels(first: Version | None, second: Version | None) -> KernelDiff:
    """Compare one kernel on both sides (or note that it is on one). Raises CubinError for damaged attributes."""
    present = first or second
    assert present is not None
    diff = KernelDiff(present.kernel.name, first, second)
    if first is None or second is None:
        return diff
    sides = []
    for side in (first, second):
        with naming(side.path):
            sides.append((items_of(side.view, side.kernel), kernel_facts(side.view, side.kernel)))
    items, facts = (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1])
    diff.items = items
    diff.code = compare_code(*items)
    diff.resources = _resources(*facts)
    diff.mix = _differing(*(dict(side.code.mix) if side.code else {} for side in facts))
    diff.attributes = _attributes(first, second) + _initial_values(first, second)
    if first.kernel.name != second.kernel.name:
        diff.attributes.append(Change("name", first.kernel.name, second.kernel.name))
    return diff


def _initial_values(first: Version, second: Version) -> list[Change]:
    """Variables and constants of both modules whose initial bytes differ, by what is the same and what isn't."""
    one, other = first.view.initial_values, second.view.initial_values
    return [
        Change(f"initial value of {name}", _digest(one[name]), _digest(other[name]))
        for name in sorted(one.keys() & other.keys())
        if one[name] != other[name]
    ]


def _digest(data: bytes) -> str:
    return data.hex() if len(data) <= 16 else f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}"


def _resources(one: KernelFacts, other: KernelFacts) -> list[Change]:
    out = []
    for name, before, after in zip(_NAMES, _measures(one), _measures(other), strict=True):
        if before != after:
            out.append(Change(name, before, after))
    return out


_NAMES = (
    "architecture", "registers", "instructions", "stack bytes", "frame bytes", "shared bytes", "local bytes",
    "constant bytes",
    "parameter bytes", "spills", "local accesses", "CTAs per SM", "warps per SM", "max threads", "required threads",
    "max registers", "barriers", "mbarriers", "cluster", "register budgets", "share of 128-bit global accesses",
    "share of 256-bit global accesses", "tensor instructions", "TMA instructions", "loops",
)  # fmt: skip


def _measures(facts: KernelFacts) -> tuple[Any, ...]:
    code, needs, occupancy = facts.code, facts.resources, facts.occupancy
    assert code is not None
    shares = code.share(128), code.share(256)
    return (
        facts.arch, needs.registers, code.instructions, needs.stack, needs.frame, needs.shared, needs.local,
        sum(size for _, size in needs.constants), sum(size for _, size in facts.parameters), code.spills,
        code.local_accesses, occupancy.ctas if occupancy else None, occupancy.warps if occupancy else None,
        facts.max_threads, facts.required_threads, facts.max_registers, facts.barriers, facts.mbarriers, facts.cluster,
        tuple(count for _, _, count in code.register_budgets),
        *(None if share is None else round(share, 4) for share in shares),
        sum(count for _, count in code.tensor), sum(count for _, count in code.tma), len(code.loops),
    )  # fmt: skip


def _differing(one: dict[str, int], other: dict[str, int]) -> list[Change]:
    names = sorted({*one, *other})
    return [Change(n, one.get(n, 0), other.get(n, 0)) for n in names if one.get(n, 0) != other.get(n, 0)]


def _attributes(first: Version, second: Version) -> list[Change]:
    """Attribute records that differ; lists of code offsets count as their number of bytes (offsets move with code)."""
    sides = [_records(first), _records(second)]
    out = []
    for name in sorted({*sides[0], *sides[1]}):
        before, after = sides[0].get(name), sides[1].get(name)
        if before != after:
            out.append(Change(name, before, after))
    return out


def _records(version: Version) -> dict[str, str]:
    found: dict[str, list[str]] = defaultdict(list)
    for record in version.view.attributes(version.kernel):
        if record.code in _HOLDS_OFFSETS:
            found[record.name].append(f"{len(record.payload)} bytes of offsets")
        elif record.code in _HOLDS_SYMBOLS and len(record.payload) % 4 == 0:
            count = _HOLDS_SYMBOLS[Attr(record.code)]
            words = record.words
            names = [_symbol(version, word) for word in words[:count]]
            found[record.name].append(" ".join([*sorted(names), *(f"{word:#x}" for word in words[len(names) :])]))
        else:
            found[record.name].append(record.payload.hex() if record.format == 4 else f"{record.value:#x}")
    return {name: " ".join(sorted(values)) for name, values in found.items()}


def _symbol(version: Version, index: int) -> str:
    """What a symbol's number stands for: other symbols move it. The kernel's own sections go by no name of theirs: its
    name is compared by itself."""
    elf, own = version.view.cubin.elf, f".{version.kernel.name}"
    if index >= len(elf.symbols):
        return f"symbol {index}"
    symbol = elf.symbols[index]
    name = symbol.name
    if not name and 0 < symbol.section < len(elf.sections):
        name = elf.sections[symbol.section].name
    return f"{name.removesuffix(own)} of the kernel" if name.startswith(".") and name.endswith(own) else name


def to_json(diff: ArtifactDiff) -> dict[str, Any]:
    """JSON data of a comparison."""
    return {
        "format": "gwatch-diff",
        "version": 1,
        "differs": diff.differs,
        "unread_differ": diff.unread_differ,
        "kernels": [_kernel_json(kernel) for kernel in diff.kernels],
        "problems": [{"path": item.path, "reason": item.reason} for item in diff.problems],
    }


def _kernel_json(kernel: KernelDiff) -> dict[str, Any]:
    code = kernel.code
    return {
        "name": kernel.name,
        "demangled": demangle(kernel.name),
        "second_name": kernel.second_name,
        "first": _version_json(kernel.first),
        "second": _version_json(kernel.second),
        "verdict": kernel.verdict,
        "counts": {} if code is None else {fate.value: count for fate, count in code.counts.items()},
        "renaming": {} if code is None else dict(code.renaming),
        "resources": [_change(change) for change in kernel.resources],
        "mix": [_change(change) for change in kernel.mix],
        "attributes": [_change(change) for change in kernel.attributes],
        "instructions": [] if code is None else [
            _step_json(kernel, step) for step in code.steps if step.fate is not Fate.SAME
        ],
    }  # fmt: skip


def _step_json(kernel: KernelDiff, step: Step) -> dict[str, Any]:
    one = None if step.first is None else kernel.items[0][step.first]
    other = None if step.second is None else kernel.items[1][step.second]
    changes = [] if one is None or other is None else control_changes(one, other)
    return {
        "fate": step.fate.value,
        "first": None if one is None else one.text,
        "second": None if other is None else other.text,
        "first_index": step.first,
        "second_index": step.second,
        "control": [{"name": name, "before": before, "after": after} for name, before, after in changes],
    }


def _version_json(version: Version | None) -> dict[str, str] | None:
    return (
        None if version is None else {"path": version.path, "arch": version.arch, "patched": version.patched}
    )


def _change(change: Change) -> dict[str, Any]:
    return {"name": change.name, "before": change.before, "after": change.after}
