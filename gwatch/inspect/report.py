"""Results of an inspection as values, and as JSON.

The JSON's shape is described by the packaged ``schema.json``; keys are only ever added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch import __version__
from gwatch.errors import CubinError
from gwatch.inspect.artifacts import Skipped
from gwatch.inspect.demangle import demangle

if TYPE_CHECKING:
    from gwatch.inspect.facts import CodeFacts, KernelFacts
    from gwatch.inspect.loops import Loop
    from gwatch.inspect.rules import Violation
    from gwatch.inspect.vectorize import Vectorization

FORMAT_VERSION = 1
SCHEMA = Path(__file__).resolve().parent / "schema.json"


@dataclass(slots=True)
class KernelReport:
    """One kernel: facts, and what else was asked for.

    ``lines``: (file, line, instructions that stem from it), by file and line; ``loop_lines``: for each of
    ``facts.code.loops`` (file, first line, last line) of the file that most of its instructions stem from, or None.
    ``patched``: what gwatch put into it and what of its code is counted, in words.
    """

    facts: KernelFacts
    lines: tuple[tuple[str, int, int], ...] = ()
    loop_lines: tuple[tuple[str, int, int] | None, ...] = ()
    vectorization: Vectorization | None = None
    patched: str = ""


@dataclass(slots=True)
class ImageReport:
    """One cubin. ``symbol``: what a library's own code calls it. ``relocatable``: input of a linker, which no driver
    runs as it is. ``also_at``: other places that hold the same bytes.
    ``problem``: why it, or its code, could not be read; ``unread``: by damage or for a missing program, not because its
    architecture is none that gwatch knows. ``printed``: its listing was already written out and dropped.
    ``chosen``: how many kernels were asked for; ``left_out``: the names of all, where none was."""

    path: str
    kind: str
    sha256: str
    size: int
    symbol: str = ""
    arch: str = ""
    abi: int | None = None
    toolkit: str = ""
    relocatable: bool = False
    kernels: list[KernelReport] = field(default_factory=list)
    also_at: list[str] = field(default_factory=list)
    problem: str = ""
    unread: bool = False
    sass: str = ""
    printed: bool = False
    left_out: tuple[str, ...] = ()
    chosen: int = 0
    violations: list[Violation] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """Everything found in the given paths, in the order found. ``given``: the cubins of each of those paths. ``rules``:
    how many rules were asked for; ``missing``: the refusal of a kernel pattern that nothing fits."""

    images: list[ImageReport] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    extracted: list[str] = field(default_factory=list)
    unmatched: list[Violation] = field(default_factory=list)
    given: dict[str, list[ImageReport]] = field(default_factory=dict)
    rules: int = 0
    missing: str = ""

    @property
    def refusals(self) -> list[str]:
        """``[code] text`` of each given path of which nothing could be read. A member of an archive or folder that
        could not be is named in the report alone, as long as others could."""
        said = []
        for path, images in self.given.items():
            if images and all(image.problem for image in images):
                said.append(images[0].problem)
            elif not images:
                name = str(Path(path))
                said.append(
                    str(no_cubin(path, [item for item in self.skipped if item.path.startswith(name)]))
                )
        return said or [self.missing] * bool(self.missing)

    @property
    def violations(self) -> list[tuple[str, Violation]]:
        """Broken rules with the path of the cubin they were found in ("" for a rule that fits no kernel)."""
        found = [(image.path, violation) for image in self.images for violation in image.violations]
        return found + [("", violation) for violation in self.unmatched]

    @property
    def unread(self) -> list[tuple[str, str]]:
        """(path, reason) of what may hold kernels that no rule could look at."""
        images = [(image.path, image.problem) for image in self.images if image.unread]
        return images + [(item.path, item.reason) for item in self.skipped if item.unread]

    def to_json(self) -> dict[str, Any]:
        """JSON data; see ``schema.json``."""
        return {
            "format": "gwatch-inspect",
            "version": FORMAT_VERSION,
            "gwatch": __version__,
            "images": [
                {**_image(image), "kernels": [*map(kernel_json, image.kernels)]} for image in self.images
            ],
            "skipped": [
                {"path": item.path, "reason": item.reason, "unread": item.unread} for item in self.skipped
            ],
            "extracted": list(self.extracted),
            "unmatched_rules": [violation.to_json() for violation in self.unmatched],
        }


def no_cubin(path: str, skipped: list[Skipped]) -> CubinError:
    """CubinError ``[no-cubin]`` for a path of which only ``skipped`` was found."""
    reasons = [item.reason for item in skipped if item.unread] or [item.reason for item in skipped]
    what = f"{path} holds no cubin that can be read" + (f": {reasons[0]}" if reasons else "")
    return CubinError(
        "no-cubin", what, "name a cubin, fat binary, library, package (.pt2, .whl, .zip) or folder"
    )


def json_text(report: Report) -> Iterator[str]:
    """:meth:`Report.to_json` as text, piece by piece: one line a kernel, so that `grep` and `diff` work on it."""
    empty = Report([], report.skipped, report.extracted, report.unmatched).to_json()
    del empty["images"]
    yield f'{json.dumps(empty)[:-1]}, "images": ['
    for number, image in enumerate(report.images):
        yield f'{"," if number else ""}\n{json.dumps(_image(image))[:-1]}, "kernels": ['
        for place, kernel in enumerate(image.kernels):
            yield f"{',' if place else ''}\n {json.dumps(kernel_json(kernel))}"
        yield "]}"
    yield "]}\n"


def load_schema() -> dict[str, Any]:
    """The JSON Schema of :meth:`Report.to_json`."""
    data: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return data


def _image(image: ImageReport) -> dict[str, Any]:
    data: dict[str, Any] = {
        "path": image.path,
        "kind": image.kind,
        "symbol": image.symbol,
        "also_at": list(image.also_at),
        "sha256": image.sha256,
        "bytes": image.size,
        "arch": image.arch,
        "abi": image.abi,
        "toolkit": image.toolkit,
        "relocatable": image.relocatable,
        "problem": image.problem,
        "unread": image.unread,
        "violations": [violation.to_json() for violation in image.violations],
    }
    if image.sass:
        data["sass"] = image.sass
    return data


def kernel_json(kernel: KernelReport) -> dict[str, Any]:
    """JSON data of one kernel; what only its code says is left out where no code was read."""
    facts, needs, occupancy = kernel.facts, kernel.facts.resources, kernel.facts.occupancy
    data: dict[str, Any] = {
        "name": facts.name,
        "demangled": demangle(facts.name),
        "kind": "kernel" if facts.is_kernel else "device function",
        "arch": facts.arch,
        "patched": kernel.patched,
        "code_bytes": facts.code_bytes,
        "registers": needs.registers,
        "stack_bytes": needs.stack,
        "frame_bytes": needs.frame,
        "shared_bytes": needs.shared,
        "local_bytes": needs.local,
        "constant_bytes": {str(bank): size for bank, size in needs.constants},
        "parameters": [{"offset": offset, "bytes": size} for offset, size in facts.parameters],
        "launch_bounds": {
            "max_threads": _list(facts.max_threads),
            "required_threads": _list(facts.required_threads),
            "max_registers": facts.max_registers,
            "cluster": _list(facts.cluster),
            "max_cluster_rank": facts.max_cluster_rank,
        },
        "barriers": facts.barriers,
        "mbarriers": facts.mbarriers,
        "occupancy": None
        if occupancy is None
        else {
            "threads": occupancy.threads,
            "basis": occupancy.basis,
            "ctas_per_sm": occupancy.ctas,
            "warps_per_sm": occupancy.warps,
            "fraction": round(occupancy.fraction, 4),
        },
        "lines": [{"file": file, "line": line, "instructions": count} for file, line, count in kernel.lines],
    }
    if facts.code is not None:
        data |= _code(facts.code, kernel.loop_lines)
    if kernel.vectorization is not None:
        data["vectorization"] = kernel.vectorization.to_json()
    return data


def _code(code: CodeFacts, loop_lines: tuple[tuple[str, int, int] | None, ...]) -> dict[str, Any]:
    return {
        "engine": code.engine,
        "instructions": code.instructions,
        "register_budgets": [
            {"pc": pc, "action": action.lower(), "registers": count}
            for pc, action, count in code.register_budgets
        ],
        "spills": {"instructions": code.spills, "exact": code.spills_exact},
        "local_accesses": code.local_accesses,
        "mix": dict(code.mix),
        "opcodes": dict(code.opcodes),
        "memory": [
            {
                "opcode": use.opcode,
                "space": use.space,
                "action": use.action,
                "bits": use.bits,
                "modifiers": list(use.modifiers),
                "count": use.count,
            }
            for use in code.memory
        ],
        "share_128": _rounded(code.share(128)),
        "share_256": _rounded(code.share(256)),
        "tensor": dict(code.tensor),
        "tma": dict(code.tma),
        "loops": [
            _loop(loop, loop_lines[number] if loop_lines else None) for number, loop in enumerate(code.loops)
        ],
    }


def _loop(loop: Loop, lines: tuple[str, int, int] | None) -> dict[str, Any]:
    return {
        "start": loop.start,
        "latch": loop.latch,
        "depth": loop.depth,
        "instructions": loop.instructions,
        "ranges": [[first, last] for first, last in loop.ranges],
        "lines": None if lines is None else {"file": lines[0], "first": lines[1], "last": lines[2]},
    }


def _list(dims: tuple[int, int, int] | None) -> list[int] | None:
    return None if dims is None else list(dims)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
