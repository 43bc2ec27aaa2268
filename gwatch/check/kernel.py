"""Check the kernels of a cubin: their code against the machine's model, and all that points into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gwatch.check.findings import Finding, KernelCheck
from gwatch.check.holders import HolderChecker
from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.errors import GWatchError, UnsupportedError
from gwatch.sass.arch import INSTRUCTION_SIZE
from gwatch.sass.cfg import build_cfg
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import latency_for, parse_table
from gwatch.sass.section import SectionChecker

if TYPE_CHECKING:
    from gwatch.cuda.binary import Cubin, KernelDef


def check_kernel(cubin: Cubin, kernel: KernelDef) -> KernelCheck:
    """Check one kernel (or device function) of ``cubin``.

    Code that can't be read (an architecture without tables, an unknown control-flow word) is named in
    :attr:`KernelCheck.refused`; nothing is raised for it.
    """
    result = KernelCheck(kernel.name, cubin.arch.name, len(kernel.words))
    try:
        _check(cubin, kernel, result)
    except GWatchError as error:
        result.refused = str(error)
    result.findings.sort(key=lambda item: -1 if item.index is None else item.index)
    return result


def _check(cubin: Cubin, kernel: KernelDef, result: KernelCheck) -> None:
    isa = isa_for(cubin.arch.name)
    try:
        latency = latency_for(cubin.arch.latency)
    except UnsupportedError as error:
        # Scoreboards, control words and code offsets can be checked without distances.
        result.refused = str(error)
        latency = parse_table("", cubin.arch.table)
    result.instructions = kernel.code.unpadded
    words = kernel.words
    entries, jumps = _starts(kernel)
    cfg = build_cfg(isa, words, entries, jumps=jumps, callees=entries[1:])
    checker = SectionChecker(isa, latency, words, cfg)
    size = cubin.arch.instruction_size

    def report(index: int | None, kind: str, cause: str) -> None:
        text = "" if index is None else checker.view.text(index)
        pc = None if index is None else index * size
        result.findings.append(Finding(kernel.name, index, pc, text, kind, cause))

    for item in checker.run():
        report(item.index, item.kind, item.message)
    live = checker.cfg.reachable(checker.cfg.entries)
    result.holders = HolderChecker(cubin, kernel, checker.view, report).run(live)
    result.pairs = checker.pairs
    incomplete = [index for index in checker.view.incomplete() if not checker.view.facts(index).known]
    result.unread = int(np.count_nonzero(live[incomplete])) if incomplete else 0


def _starts(kernel: KernelDef) -> tuple[tuple[int, ...], dict[int, list[int]]]:
    """Where functions start, and the targets of indirect branches, by index; offsets that are no instructions are
    left to the check of their holders.
    """
    count = len(kernel.words)

    def places(offsets: Iterable[int]) -> list[int]:
        return [
            o // INSTRUCTION_SIZE
            for o in offsets
            if not o % INSTRUCTION_SIZE and o // INSTRUCTION_SIZE < count
        ]

    jumps: dict[int, list[int]] = {}
    for attribute in kernel.attributes:
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS:
            for branch in nvinfo.indirect_branches(attribute):
                for index in places([branch.branch]):
                    jumps[index] = places(branch.targets)
    return tuple(sorted({0, *places(symbol.value for symbol in kernel.inner_functions)})), jumps


def check_cubin(
    cubin: Cubin, pattern: str = "", finished: Callable[[KernelCheck], None] | None = None
) -> Iterator[KernelCheck]:
    """Check every kernel and device function of ``cubin`` whose mangled name matches the regular expression.

    Raises CubinError [elf-relocation], [elf-index] for relocations that fit no section.
    """
    for section in cubin.elf.relocation_sections():
        cubin.elf.relocations(section)
    for kernel in [*cubin.get_map_kernel_def().values(), *cubin.get_map_function_def().values()]:
        if re.search(pattern, kernel.name):
            result = check_kernel(cubin, kernel)
            if finished is not None:
                finished(result)
            yield result
