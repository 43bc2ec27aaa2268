"""Inspect whole artifacts: every cubin of every path, in one process or many, in a fixed order."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gwatch._files import need_folder, write_atomically
from gwatch.cuda.binary.elf import ET_REL
from gwatch.errors import CubinError, GWatchError, KernelError, ToolError, UnsupportedError, naming
from gwatch.inspect.artifacts import Image, Skipped, Text, open_artifact
from gwatch.inspect.demangle import demangle
from gwatch.inspect.report import ImageReport, KernelReport, Report
from gwatch.inspect.view import CubinView

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from gwatch.cuda.binary import KernelDef
    from gwatch.inspect.facts import KernelFacts
    from gwatch.inspect.listing import Style
    from gwatch.inspect.rules import Rule
    from gwatch.inspect.triton_source import TritonKernel, TritonKernels
    from gwatch.inspect.vectorize import Vectorization

IN_FLIGHT_BYTES = 256 << 20
"""Images handed to workers and not yet back, at most (always at least one)."""

_STEM = 100
"""Characters of a member's name that the name of its extracted file starts with."""

_NEAR_AMONG = 2000
"""Kernels among which names near a pattern that fits none are looked for."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to find out. ``kernels``: regular expression, all if empty. ``sass``: add listings in that style.
    ``facts`` False: listings only (needs no rules). ``code`` False: only what attributes and sizes say; no instruction
    is read (rules about code, ``vectorization`` and ``lines`` need it)."""

    kernels: str = ""
    rules: tuple[Rule, ...] = ()
    vectorization: bool = False
    lines: bool = False
    sass: Style | None = None
    facts: bool = True
    code: bool = True

    def wants(self, name: str) -> bool:
        """Whether the kernel of this mangled name is asked for."""
        return not self.kernels or any(re.search(self.kernels, n) for n in {name, demangle(name)})


def examine(
    image: Image, request: Request, described: TritonKernels | None, digest: str = ""
) -> ImageReport:
    """Everything asked for about one cubin, whose ``digest`` may be known. Damage and unknown architectures become its
    ``problem``; where only nvdisasm is missing to read the code, the rest of the facts is still there."""
    digest = digest or hashlib.sha256(image.data).hexdigest()
    report = ImageReport(image.path, image.kind, digest, len(image.data), image.symbol)
    try:
        try:
            with naming(image.path):
                _examine(image, request, described, report)
        except ToolError as error:
            report.problem, report.unread = str(error), True
            report.kernels.clear()
            report.violations.clear()
            if request.facts:
                with naming(image.path):
                    _examine(image, Request(request.kernels, code=False), described, report)
    except GWatchError as error:
        report.problem, report.unread = str(error), not isinstance(error, UnsupportedError)
        report.kernels.clear()
        report.violations.clear()
    return report


def _examine(image: Image, request: Request, described: TritonKernels | None, report: ImageReport) -> None:
    view = CubinView.of(image.data, image.path)
    report.arch, report.abi, report.toolkit = view.arch.name, view.cubin.abi_version, view.toolkit
    report.relocatable = view.cubin.elf.header.type == ET_REL
    patched = _patched(view)
    chosen = [kernel for kernel in view.kernels if request.wants(kernel.name)]
    report.chosen = len(chosen)
    if not chosen:
        report.left_out = tuple(kernel.name for kernel in view.kernels)
    if request.facts or request.rules:
        _add_kernels(view, chosen, image, request, described, report)
        for kernel in report.kernels:
            kernel.patched = patched.get(kernel.facts.name, "")
    if request.sass is not None:
        from gwatch.inspect.listing import listing

        whole = CubinView.of(image.data, image.path) if patched else view  # a listing shows all code
        report.sass = listing(whole, request.sass, request.wants if request.kernels else None)


def _patched(view: CubinView) -> dict[str, str]:
    """Kernels that gwatch patched, and which of their code is looked at."""
    if not view.has_notes:
        return {}
    from gwatch.inspect.patched import leave_out_copy

    try:
        return leave_out_copy(view)
    except GWatchError as error:
        said = f"patched by gwatch; all code is counted, for what was patched can't be read: {error}"
        return {kernel.name: said for kernel in view.kernels}


def _add_kernels(
    view: CubinView,
    chosen: list[KernelDef],
    image: Image,
    request: Request,
    described: TritonKernels | None,
    report: ImageReport,
) -> None:
    # Imported when asked for: a listing doesn't pay for it.
    from gwatch.inspect.facts import kernel_facts

    for kernel in chosen:
        description = described.find(kernel.name, image.path, image.symbol) if described else None
        threads = 32 * description.num_warps if description and description.num_warps else None
        shared = (description.shared or 0) if description else 0
        facts = kernel_facts(view, kernel, threads, shared, request.code)
        accesses = lru_cache(maxsize=1)(partial(_vectorization, view, kernel, description))
        wide = accesses() if request.vectorization and kernel.is_entry else None
        found = KernelReport(facts, vectorization=wide)
        if request.lines:
            found.lines, found.loop_lines = _lines(view, kernel, facts)
        report.kernels.append(found)
        if kernel.is_entry and request.rules:
            from gwatch.inspect.rules import check

            report.violations += check(request.rules, view, kernel, facts, accesses)


def _lines(
    view: CubinView, kernel: KernelDef, facts: KernelFacts
) -> tuple[tuple[tuple[str, int, int], ...], tuple[tuple[str, int, int] | None, ...]]:
    """Source lines with their instruction counts, and the lines of each loop."""
    size = view.arch.instruction_size
    end = len(view.code(kernel)) * size if facts.code else facts.code_bytes
    where = {address: place for address, place in kernel.map_address_to_line.items() if address < end}
    counts = Counter(where.values())
    loops: list[tuple[str, int, int] | None] = []
    for loop in facts.code.loops if facts.code else ():
        found = [where[index * size] for index in loop.indices() if index * size in where]
        if not found:
            loops.append(None)
            continue
        file = Counter(file for file, _ in found).most_common(1)[0][0]
        numbers = [line for name, line in found if name == file]
        loops.append((file, min(numbers), max(numbers)))
    return tuple((file, line, count) for (file, line), count in sorted(counts.items())), tuple(loops)


def _vectorization(view: CubinView, kernel: KernelDef, description: TritonKernel | None) -> Vectorization:
    # Imported when asked for: a listing or a table of kernels doesn't pay for it.
    from gwatch.inspect.vectorize import vectorization

    return vectorization(view, kernel, description)


@dataclass(slots=True, eq=False)
class _Task:
    """A cubin on its way: its report, or the future of it, and where else the same bytes were found. ``near``: what may
    have been said of it, ``said``: what was, once that is asked for."""

    path: str
    symbol: str
    near: TritonKernels | None
    size: int
    future: Future[ImageReport] | None = None
    report: ImageReport | None = None
    also_at: list[str] = field(default_factory=list)
    said: tuple[TritonKernel, ...] | None = None

    def finish(self, finished: Callable[[ImageReport], None] | None) -> None:
        """Wait for the report, let go of the future, tell ``finished``."""
        self.report = self.result()
        self.future = None
        if finished is not None:
            finished(self.report)

    def result(self) -> ImageReport:
        """The report, waited for."""
        if self.report is not None:
            return self.report
        assert self.future is not None
        try:
            return self.future.result()
        except Exception as error:
            from concurrent.futures import BrokenExecutor

            if isinstance(error, BrokenExecutor) or type(error).__module__.startswith("distributed."):
                raise ToolError(
                    "worker-died",
                    f"a worker ended before it answered ({type(error).__name__})",
                    "out of memory? use fewer --jobs",
                ) from error
            raise


def inspect(
    paths: Sequence[str | os.PathLike[str]],
    request: Request | None = None,
    *,
    executor: Executor | None = None,
    workers: int = 1,
    extract: Path | None = None,
    progress: Callable[[int, str], None] | None = None,
    finished: Callable[[ImageReport], None] | None = None,
) -> Report:
    """Inspect everything in ``paths``.

    ``executor`` runs the work on cubins (any :class:`concurrent.futures.Executor`; none: here), with about
    ``2 * workers`` of them handed out at a time; the report doesn't depend on it. ``extract``: folder that gets each
    distinct cubin as a file. ``progress`` is called with the number of cubins found so far and the path of each,
    ``finished`` with each cubin's report in the order found (it may take the listing out, so that not all are held),
    and again when a description of it turns up at another place. Equal bytes are looked at once for each thing that is
    said of them.
    Raises CubinNotFound or CubinError for a path that can't be read at all.
    """
    asked = request or Request()
    report = Report()
    tasks: dict[str, list[_Task]] = {}
    waiting: deque[_Task] = deque()
    in_flight = found = 0
    given: dict[str, list[_Task]] = {}
    for item, described, mine in _items(paths, given):
        if isinstance(item, Skipped):
            report.skipped.append(item)
            continue
        digest = hashlib.sha256(item.data).hexdigest()
        if progress is not None:
            progress(found + 1, item.path)
        near = described.near(item.path, item.symbol) if described else None
        task = _Task(item.path, item.symbol, near, len(item.data))
        same = tasks.setdefault(digest, [])
        known = _known(item, task, same) if asked.facts else same[0] if same else None
        if known is not None:
            mine.append(known)
            if not (task.said and not known.said):
                known.also_at.append(item.path)
                continue
            # What was found before without a description is described here.
            known.also_at.insert(0, known.path)
            known.path, known.symbol, known.near, known.said = task.path, task.symbol, near, task.said
            task = known
        else:
            mine.append(task)
            same.append(task)
            found += 1
            if extract is not None and len(same) == 1:
                report.extracted.append(_extract(extract, item, digest))
        if executor is None:
            task.report = examine(item, asked, near, digest)
            task.finish(finished)
            continue
        while waiting and (len(waiting) >= 2 * workers or in_flight + len(item.data) > IN_FLIGHT_BYTES):
            in_flight -= waiting[0].size
            waiting.popleft().finish(finished)
        task.report, task.future = None, executor.submit(examine, item, asked, near, digest)
        if task not in waiting:
            waiting.append(task)
            in_flight += task.size
    for task in waiting:
        task.finish(finished)
    for task in (task for same in tasks.values() for task in same):
        image = task.result()
        image.also_at = task.also_at
        report.images.append(image)
    report.given = {path: [task.result() for task in mine] for path, mine in given.items()}
    if asked.kernels and report.images and not any(image.chosen for image in report.images):
        report.missing = str(
            _missing(asked.kernels, [name for image in report.images for name in image.left_out])
        )
    if asked.rules:
        from gwatch.inspect.rules import unmatched

        names = [k.facts.name for image in report.images for k in image.kernels if k.facts.is_kernel]
        report.rules, report.unmatched = len(asked.rules), unmatched(asked.rules, names, bool(report.unread))
    return report


def _known(item: Image, task: _Task, same: list[_Task]) -> _Task | None:
    """Which of the tasks with the same bytes has nothing to add to ``task``, or the other way round: all that differs
    between them is what texts around them say."""
    if not same:
        return None
    try:
        names = [kernel.name for kernel in CubinView.of(item.data, item.path).kernels]
    except GWatchError:
        return same[0]
    for one in (task, *same):
        if one.said is None:
            one.said = one.near.said(names, one.path, one.symbol) if one.near else ()
    if not task.said:
        return same[0]
    return next((one for one in same if one.said in (task.said, ())), None)


def _missing(pattern: str, names: list[str]) -> KernelError:
    import difflib

    shown = {demangle(name): name for name in names[:_NEAR_AMONG]}
    near = difflib.get_close_matches(pattern, shown, 3, cutoff=0.3) or list(shown)[:3]
    hint = f"near it: {', '.join(near)}" if near else "there is none"
    return KernelError("kernel-not-found", f"none of {len(names)} kernels matches {pattern!r}", hint, near)


def _items(
    paths: Iterable[str | os.PathLike[str]], given: dict[str, list[_Task]]
) -> Iterator[tuple[Image | Skipped, TritonKernels | None, list[_Task]]]:
    """Each item with what texts say about kernels (None: no text) and the list of tasks that belongs to its path in
    ``given``."""
    for path in paths:
        described, mine = None, given.setdefault(os.fspath(path), [])
        for item in open_artifact(path):
            if isinstance(item, Text):
                described = described or _no_kernels()
                described.add(item)
            else:
                yield item, described, mine


def _no_kernels() -> TritonKernels:
    # Imported where there is a text: a cubin by itself doesn't pay for it.
    from gwatch.inspect.triton_source import TritonKernels

    return TritonKernels()


def _extract(folder: Path, image: Image, digest: str) -> str:
    """Write one cubin; its name starts with the member's own and ends with the hash, so that no two clash."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", re.split(r"[!/\\\\]", image.path)[-1]).removesuffix(".cubin")[
        :_STEM
    ]
    path = folder / f"{stem}-{digest[:12]}.cubin"
    try:
        if not folder.is_dir():
            need_folder(folder)
            folder.mkdir()
    except OSError as error:
        raise CubinError("extract-folder", f"cannot make {folder}: {error.strerror}") from None
    write_atomically(path, image.data, follow=False)
    return str(path)
