"""Reports for people and for CI logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gwatch.errors import printable
from gwatch.inspect.demangle import demangle, short
from gwatch.inspect.report import ImageReport, KernelReport, Report

if TYPE_CHECKING:
    from gwatch.inspect.facts import CodeFacts
    from gwatch.inspect.rules import Violation
    from gwatch.inspect.vectorize import GlobalAccess, Vectorization

DETAILED = 3
"""Up to this many kernels in all, each is described at length."""
_NAME_WIDTH = 52


def render(report: Report) -> str:
    """The whole report as text."""
    total = sum(len(image.kernels) for image in report.images)
    out: list[str] = []
    for image in report.images:
        out += _image(image, total <= DETAILED)
    out += _skipped(report)
    out += [f"extracted {path}" for path in report.extracted]
    out.append(_summary(report))
    out += _violations(report)
    if report.rules and not report.violations and not report.unread:
        out.append(f"{report.rules} rule{'s' * (report.rules > 1)} held")
    return "".join(f"{printable(line)}\n" for line in out)


def _summary(report: Report) -> str:
    kernels = [k for image in report.images for k in image.kernels]
    launchable = sum(1 for k in kernels if k.facts.is_kernel)
    copies = sum(len(image.also_at) for image in report.images)
    unread = sum(1 for image in report.images if image.problem)
    text = _counted(len(report.images), "cubin") + (f" ({unread} not readable)" if unread else "")
    text += f", {_counted(launchable, 'kernel')}"
    if copies:
        text += f", {_counted(copies, 'copy', 'copies')} of the same bytes folded"
    if report.skipped:
        text += f", {_counted(len(report.skipped), 'other member')}"
    return text


def _counted(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _skipped(report: Report) -> list[str]:
    """Other members, those with the same reason on one line."""
    groups: dict[str, list[str]] = {}
    for item in report.skipped:
        groups.setdefault(item.reason, []).append(item.path)
    out = []
    for reason, paths in groups.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        out.append(f"other: {paths[0]}{more}: {reason}")
    return out


def _image(image: ImageReport, detailed: bool) -> list[str]:
    toolkit = f", toolkit {image.toolkit}" if image.toolkit else ""
    arch = image.arch or "unknown architecture"
    linked = ", relocatable (linked before it runs)" if image.relocatable else ""
    head = f"{image.path}  {arch}{toolkit}{linked}, {image.size} bytes, sha256 {image.sha256[:12]}"
    out = [head]
    out += [f"  also at {path}" for path in image.also_at[:3]]
    if len(image.also_at) > 3:
        out.append(f"  and at {len(image.also_at) - 3} more places")
    if image.problem:
        out.append(f"  {image.problem.replace(f'{image.path}: ', '', 1)}")
    if detailed:
        for kernel in image.kernels:
            out += _kernel(kernel)
    elif image.kernels:
        out += [f"  {short(k.facts.name)} {k.patched}" for k in image.kernels if k.patched]
        out.append(
            f"  {'kernel':{_NAME_WIDTH}} {'instr':>6} {'regs':>4} {'shared':>7} {'stack':>6} {'spills':>6} "
            f"{'occ':>5} {'128-bit':>7} {'tensor':>6} {'loops':>5}"
        )
        out += [_row(kernel) for kernel in image.kernels]
    out += [text for kernel in image.kernels if kernel.vectorization for text in _vector(kernel)]
    return [*out, ""]


def _row(kernel: KernelReport) -> str:
    facts = kernel.facts
    name = short(facts.name)
    if len(name) > _NAME_WIDTH:
        name = name[: _NAME_WIDTH - 1] + "…"
    needs, code = facts.resources, facts.code
    occupancy = f"{facts.occupancy.fraction:.0%}" if facts.occupancy else "-"
    count = spills = tensor = loops = None
    share: float | None = None
    if code is not None:
        count, spills, share = code.instructions, code.spills, code.share(128)
        tensor, loops = sum(count for _, count in code.tensor), len(code.loops)
    return (
        f"  {name:{_NAME_WIDTH}} {_or_dash(count):>6} {_or_dash(needs.registers):>4} {needs.shared:7} "
        f"{needs.stack:6} {_or_dash(spills):>6} {occupancy:>5} {'-' if share is None else f'{share:.0%}':>7} "
        f"{_or_dash(tensor):>6} {_or_dash(loops):>5}"
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _kernel(kernel: KernelReport) -> list[str]:
    facts, needs, code = kernel.facts, kernel.facts.resources, kernel.facts.code
    out = [f"  {'kernel' if facts.is_kernel else 'device function'} {demangle(facts.name)}"]
    if kernel.patched:
        out.append(f"    {kernel.patched}")
    constants = ", ".join(f"c[{bank}] {size}" for bank, size in needs.constants) or "none"
    out.append(
        f"    {f'{code.instructions} instructions' if code else f'{facts.code_bytes} B of code'}, "
        f"{_or_dash(needs.registers)} registers, shared {needs.shared} B, "
        f"stack {needs.stack} B, local {needs.local} B, constants {constants}"
    )
    limits = []
    bounds = (facts.required_threads, facts.max_threads, facts.cluster)
    for label, dims in zip(("required threads", "max threads", "cluster"), bounds, strict=True):
        if dims is not None:
            limits.append(f"{label} {dims[0]}×{dims[1]}×{dims[2]}")
    if facts.barriers:
        limits.append(f"{facts.barriers} barriers")
    if facts.mbarriers:
        limits.append(f"{facts.mbarriers} mbarriers")
    if limits:
        out.append(f"    {', '.join(limits)}")
    if facts.occupancy is not None:
        o = facts.occupancy
        out.append(
            f"    occupancy {o.fraction:.0%}: {o.ctas} CTAs of {o.threads} threads ({o.basis}), "
            f"{o.warps} warps per SM"
        )
    if code is not None:
        out += _code(code, kernel)
    return out


def _code(code: CodeFacts, kernel: KernelReport) -> list[str]:
    out = []
    if code.register_budgets:
        steps = ", ".join(
            f"{action.lower()} {count} at {pc:#x}" for pc, action, count in code.register_budgets
        )
        out.append(f"    register budgets (setmaxnreg): {steps}")
    if code.spills or code.local_accesses:
        basis = "marked by the compiler" if code.spills_exact else "fixed stack slots"
        out.append(f"    spills: {code.spills} ({basis}) of {code.local_accesses} local loads and stores")
    out.append(
        f"    mix: {', '.join(f'{unit} {count}' for unit, count in sorted(code.mix, key=lambda m: -m[1]))}"
    )
    for use in code.memory:
        if use.space != "constant":
            out.append(
                f"    {use.count:5} × {use.opcode:32} {use.space} {use.action}, {use.bits} bits a thread"
            )
    share = code.share(128)
    if share is not None:
        widest = f", {code.share(256):.0%} are 256" if code.share(256) else ""
        out.append(f"    {share:.0%} of the global loads and stores are at least 128 bits wide{widest}")
    for label, found in (("tensor", code.tensor), ("tma", code.tma)):
        if found:
            out.append(f"    {label}: {', '.join(f'{count} × {name}' for name, count in found)}")
    for number, loop in enumerate(code.loops[:12]):
        place = f"{loop.start:#06x}..{loop.latch:#06x}"
        lines = kernel.loop_lines[number] if kernel.loop_lines else None
        source = f", {lines[0].rsplit('/', 1)[-1]}:{lines[1]}-{lines[2]}" if lines else ""
        out.append(f"    loop {place}, depth {loop.depth}, {loop.instructions} instructions{source}")
    if len(code.loops) > 12:
        out.append(f"    and {len(code.loops) - 12} more loops (--json)")
    files: dict[str, list[int]] = {}
    for path, line, _ in kernel.lines:
        files.setdefault(path, []).append(line)
    out += [f"    source {path}, lines {min(lines)} to {max(lines)}" for path, lines in files.items()]
    return out


def _vector(kernel: KernelReport) -> Iterator[str]:
    found = kernel.vectorization
    assert found is not None
    yield f"  global loads and stores of {short(kernel.facts.name)}{_launch(found)}"
    if not found.accesses:
        yield "    none"
        return
    names = [f"{access.argument} {access.argument_type}".strip() or "?" for access in found.accesses]
    wide = max(24, *(len(access.opcode) for access in found.accesses)), max(14, *map(len, names))
    yield (
        f"    {'pc':>6}  {'instruction':{wide[0]}} {'guard':5} {'bits':>4} {'bytes':>5}  {'argument':{wide[1]}} "
        f"{'divisible':>9}  line"
    )
    for access, name in zip(found.accesses, names, strict=True):
        yield _access(access, name, wide, found.described)
    narrow = [access for access in found.accesses if access.cause is not None]
    full = len(found.accesses) - len(narrow)
    yield f"    {full} of {len(found.accesses)} are 128 bits wide or more"
    seen: dict[tuple[str, str, str], list[GlobalAccess]] = {}
    for access in narrow:
        assert access.cause is not None
        seen.setdefault((access.action, access.cause.name, access.cause.argument), []).append(access)
    for (action, name, _), members in seen.items():
        first = members[0]
        assert first.cause is not None
        others = len({member.cause.text for member in members if member.cause is not None}) - 1
        more = f"; {others} more group{'s' * (others > 1)} alike (--json)" if others else ""
        many = f"copies{action.removeprefix('copy')}" if action.startswith("copy") else f"{action}s"
        yield f"    {len(members)} narrow {many if len(members) > 1 else action} ({name}): {first.cause.text}{more}"


def _launch(found: Vectorization) -> str:
    parts = []
    if found.num_warps:
        parts.append(f"{found.num_warps} warps ({32 * found.num_warps} threads)")
    parts += [f"{name}={value}" for name, value in found.constants]
    return f": {', '.join(parts)}" if parts else ""


def _access(access: GlobalAccess, argument: str, wide: tuple[int, int], described: bool) -> str:
    divisible = (
        str(access.divisibility) if access.divisibility else "no" if described and access.argument else "?"
    )
    where = ""
    if access.line is not None:
        file, number, text = access.line
        where = f"{number}: {text}" if text else f"{file.rsplit('/', 1)[-1]}:{number}"
    return (
        f"    {access.pc:#06x}  {access.opcode:{wide[0]}} {access.guard:5} {access.bits:4} {access.bytes:5}  "
        f"{argument:{wide[1]}} {divisible:>9}  {where}"
    ).rstrip()


def violations(report: Report) -> list[str]:
    """One paragraph a broken rule."""
    return [printable(line) for line in _violations(report)]


def _violations(report: Report) -> list[str]:
    out = []
    for path, violation in report.violations:
        kernel = f" in kernel {demangle(violation.kernel)}" if violation.kernel else ""
        where = f" of {path}" if path else ""
        out.append(f"FAIL [{violation.rule}]{kernel}{where}: {violation.message}")
        if violation.pc >= 0:
            out.append(f"     at {violation.pc:#06x}: {violation.instruction}{_source(violation)}")
        if violation.cause:
            out.append(f"     {violation.cause}")
    return out


def _source(violation: Violation) -> str:
    if violation.line is None:
        return ""
    file, number, text = violation.line
    return f"  ({file}:{number}{': ' + text if text else ''})"


def github(report: Report) -> str:
    """Broken rules as GitHub workflow commands, one a line; warnings for cubins that no rule could look at."""
    unknown = [(image.path, image.problem) for image in report.images if image.problem and not image.unread]
    out = [
        printable(f"::warning file={_property(path)},title=not checked::{_escaped(reason)}")
        for path, reason in unknown + report.unread
    ]
    for path, violation in report.violations:
        place = _property(path)
        if violation.line is not None:
            place = f"{_property(violation.line[0])},line={violation.line[1]}"
        detail = f" at {violation.pc:#x}: {violation.instruction}" if violation.pc >= 0 else ""
        cause = f" ({violation.cause})" if violation.cause else ""
        kernel = f"{demangle(violation.kernel)}: " if violation.kernel else ""
        message = _escaped(f"{kernel}{violation.message}{detail}{cause}")
        file = f"file={place}," if place else ""
        out.append(printable(f"::error {file}title={_property(violation.rule)}::{message}"))
    return "".join(f"{line}\n" for line in out)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
