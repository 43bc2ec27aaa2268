"""Check the kernels of a cubin: their code against the machine's model, and all that points into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gwatch.check.findings import Finding, KernelCheck
from gwatch.check.holders import HolderChecker
from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.errors import GWatchError
from gwatch.sass.arch import INSTRUCTION_SIZE
from gwatch.sass.cfg import build_cfg
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import latency_for
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
    latency = latency_for(cubin.arch.table)
    words = kernel.words
    checker = SectionChecker(isa, latency, words, build_cfg(isa, words, _starts(kernel)))
    size = cubin.arch.instruction_size

    def report(index: int | None, kind: str, cause: str) -> None:
        text = "" if index is None else checker.view.facts(index).text
        pc = None if index is None else index * size
        result.findings.append(Finding(kernel.name, index, pc, text, kind, cause))

    for item in checker.run():
        report(item.index, item.kind, item.message)
    live = checker.cfg.reachable(checker.cfg.entries)
    result.holders = HolderChecker(cubin, kernel, checker.view, report).run(live)
    result.pairs = checker.pairs
    incomplete = [index for index in checker.view.incomplete() if not checker.view.facts(index).known]
    result.unread = int(np.count_nonzero(live[incomplete])) if incomplete else 0


def _starts(kernel: KernelDef) -> tuple[int, ...]:
    """Where the section is entered: functions, and targets of jump tables that are instructions (the rest is
    reported with their holders).
    """
    found = {0}
    count = len(kernel.words)
    offsets = [symbol.value for symbol in kernel.inner_functions]
    for attribute in kernel.attributes:
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS:
            for branch in nvinfo.indirect_branches(attribute):
                offsets.extend(branch.targets)
    for offset in offsets:
        index, rest = divmod(offset, INSTRUCTION_SIZE)
        if not rest and index < count:
            found.add(index)
    return tuple(sorted(found))


def check_cubin(
    cubin: Cubin, pattern: str = "", finished: Callable[[KernelCheck], None] | None = None
) -> Iterator[KernelCheck]:
    """Check every kernel and device function of ``cubin`` whose mangled name matches the regular expression."""
    for kernel in [*cubin.get_map_kernel_def().values(), *cubin.get_map_function_def().values()]:
        if re.search(pattern, kernel.name):
            result = check_kernel(cubin, kernel)
            if finished is not None:
                finished(result)
            yield result
