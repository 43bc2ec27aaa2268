"""Comparisons as text: a summary line a kernel, and listings with the differing instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gwatch.diff.artifacts import ArtifactDiff, Change, KernelDiff
from gwatch.diff.compare import Fate
from gwatch.diff.items import control_changes
from gwatch.errors import printable
from gwatch.inspect.demangle import demangle, short

CONTEXT = 3
_MARKS = {
    Fate.SAME: " ", Fate.CONTROL: "c", Fate.TARGET: "t", Fate.REGISTERS: "r", Fate.CHANGED: "!", Fate.MOVED: ">",
    Fate.DELETED: "-", Fate.INSERTED: "+",
}  # fmt: skip
_BOTH = frozenset({Fate.CHANGED, Fate.REGISTERS, Fate.TARGET})
_SIZE = 16


def stat(diff: ArtifactDiff) -> str:
    """One line a kernel, under what it is in; and a total."""
    out: list[str] = []
    where = ""
    for kernel in diff.kernels:
        if (place := _where(kernel)) != where:
            out.append(place)
            where = place
        out.append(f"  {_stat(kernel)}")
    return _joined([*out, _total(diff), *_problems(diff)])


def _where(kernel: KernelDiff) -> str:
    """Path and architecture on both sides, or on the one that has the kernel."""
    sides = [f"{side.path} ({side.arch})" for side in (kernel.first, kernel.second) if side is not None]
    return " → ".join(dict.fromkeys(sides))


def full(diff: ArtifactDiff, context: int = CONTEXT) -> str:
    """Every kernel that differs, with resources, attributes and the instructions around each difference."""
    out: list[str] = []
    for kernel in diff.kernels:
        only = kernel.second if kernel.first is None else kernel.first if kernel.second is None else None
        if only is not None:
            out.append(f"kernel {demangle(kernel.name)}: {kernel.verdict}, {only.path} ({only.arch})")
        elif kernel.differs:
            out += _kernel(kernel, context)
    return _joined([*out, _total(diff), *_problems(diff)])


def _joined(lines: list[str]) -> str:
    return "".join(f"{printable(line)}\n" for line in lines)


def _problems(diff: ArtifactDiff) -> list[str]:
    found = [f"not compared: {item.path}: {item.reason}" for item in diff.problems]
    return [*found, "what was not compared has other bytes"] if diff.unread_differ else found


def _total(diff: ArtifactDiff) -> str:
    same = sum(1 for kernel in diff.kernels if kernel.verdict == "identical code")
    if same == len(diff.kernels) and not diff.differs:
        return f"identical code in {'the kernel' if same == 1 else f'all {same} kernels'}"
    count = len(diff.kernels)
    return f"{count} kernel{'s' * (count != 1)}: {same} with identical code, {count - same} without"


def _both(kernel: KernelDiff, shown: Callable[[str], str]) -> str:
    """The kernel's name; both where it has another in the second artifact."""
    names = dict.fromkeys((shown(kernel.name), shown(kernel.second_name)))
    return " → ".join(names)


def _stat(kernel: KernelDiff) -> str:
    text = f"{_both(kernel, short)}: {kernel.verdict}"
    if kernel.code is not None and kernel.code.verdict == "changed":
        text += f" ({_counts(kernel)})"
    changes = [_change(change) for change in kernel.resources]
    return f"{text}; {', '.join(changes)}" if changes else text


def _counts(kernel: KernelDiff) -> str:
    assert kernel.code is not None
    counts = kernel.code.counts
    return ", ".join(f"{count} {fate.value}" for fate, count in counts.items() if fate is not Fate.SAME)


def _change(change: Change) -> str:
    return f"{change.name} {change.before} → {change.after}"


def _kernel(kernel: KernelDiff, context: int) -> Iterator[str]:
    yield f"kernel {_both(kernel, demangle)}: {kernel.verdict}"
    for version, mark in ((kernel.first, "---"), (kernel.second, "+++")):
        if version is not None:
            yield f"{mark} {version.path} ({version.arch})"
            if version.patched:
                yield f"    {version.patched}"
    for change in kernel.resources:
        yield f"  {_change(change)}"
    for change in kernel.mix:
        yield f"  {change.name} instructions {change.before} → {change.after}"
    for change in kernel.attributes:
        yield f"  attribute {_change(change)}"
    if kernel.code is not None:
        yield f"  {_counts(kernel)}"
        if kernel.code.renaming:
            names = ", ".join(f"{one}→{other}" for one, other in kernel.code.renaming[:12])
            more = f" and {len(kernel.code.renaming) - 12} more" if len(kernel.code.renaming) > 12 else ""
            yield f"  one renaming explains all registers: {names}{more}"
        yield from _listing(kernel, context)
    yield ""


def _listing(kernel: KernelDiff, context: int) -> Iterator[str]:
    assert kernel.code is not None
    steps = kernel.code.steps
    shown: set[int] = set()
    moved = {step.fate for step in steps} <= {Fate.SAME, Fate.CONTROL, Fate.TARGET}
    for number, step in enumerate(steps):
        if step.fate is Fate.CONTROL or (step.fate is Fate.TARGET and moved):
            shown.add(number)
        elif step.fate not in (Fate.SAME, Fate.TARGET):
            shown.update(range(max(0, number - context), min(len(steps), number + context + 1)))
    previous = -1
    for number in sorted(shown):
        if number != previous + 1:
            yield "  ..."
        previous = number
        step = steps[number]
        mark = _MARKS[step.fate]
        one = None if step.first is None else kernel.items[0][step.first]
        other = None if step.second is None else kernel.items[1][step.second]
        places = f"{_place(step.first)} {_place(step.second)}"
        if one is not None and other is not None and step.fate in _BOTH:
            hidden = one.body == other.body and step.fate is Fate.CHANGED
            yield f"{mark} {places}  {one.text}{f' (word {one.word:#x})' if hidden else ''}"
            yield f"{mark} {'':13}  → {other.text}{f' (word {other.word:#x})' if hidden else ''}"
        else:
            only = other or one
            assert only is not None
            yield f"{mark} {places}  {only.text}"
        if one is not None and other is not None and one.control != other.control:
            yield f"{'':15}    {', '.join(f'{n} {a} → {b}' for n, a, b in control_changes(one, other))}"


def _place(index: int | None) -> str:
    return f"{'':6}" if index is None else f"{index * _SIZE:#06x}"
