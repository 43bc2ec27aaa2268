"""Facts about one cubin and each of its kernels, without a GPU and without running anything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gwatch.cuda.binary import KernelDef, nvinfo
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.inspect.loops import Loop
from gwatch.inspect.opcodes import Access
from gwatch.inspect.tally import Tally
from gwatch.inspect.view import CubinView
from gwatch.sass.arch import Arch, declared_shared, occupancy

ASSUMED_THREADS = 256
"""Block size that occupancy is given for when nothing states one."""
_SPILL = 1
"""Kind of an ANNOTATIONS entry that marks a register spill or refill (printed as SpillRefill by nvdisasm)."""
_BARRIER_SHIFT, _BARRIER_MASK = 20, 0x7F


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """``count`` instructions with the same space, action, bits per thread and modifiers."""

    opcode: str
    space: str
    action: str
    bits: int
    modifiers: tuple[str, ...]
    count: int


class Occupancy(NamedTuple):
    """CTAs and warps per SM for a block of ``threads``; ``basis`` says where that number comes from (launch,
    required, bound, assumed). Dynamic shared memory is counted when the launch is known."""

    threads: int
    basis: str
    ctas: int
    warps: int
    fraction: float


class Resources(NamedTuple):
    """What a launch needs, in bytes (registers: a thread's); read from attributes and section sizes alone. These are
    the numbers of ``cuobjdump -res-usage``. ``stack`` is MIN_STACK_SIZE, the kernel with its callees; ``frame``
    FRAME_SIZE, the function alone (old compilers state it also where they state no stack)."""

    registers: int | None
    stack: int
    frame: int
    shared: int
    local: int
    constants: tuple[tuple[int, int], ...]


class CodeFacts(NamedTuple):
    """What only the instructions say. ``spills`` are local loads and stores: exactly the compiler's spill code when
    ``spills_exact``, else every access to a fixed stack slot."""

    instructions: int
    register_budgets: tuple[tuple[int, str, int], ...]
    spills: int
    spills_exact: bool
    local_accesses: int
    opcodes: tuple[tuple[str, int], ...]
    mix: tuple[tuple[str, int], ...]
    memory: tuple[MemoryUse, ...]
    tensor: tuple[tuple[str, int], ...]
    tma: tuple[tuple[str, int], ...]
    loops: tuple[Loop, ...]
    engine: str

    def share(self, bits: int) -> float | None:
        """Part of the global and generic loads and stores that move at least ``bits`` a thread; None without any."""
        total = wide = 0
        for use in self.memory:
            if use.space in ("global", "generic") and use.action in ("load", "store", "copy to shared"):
                total += use.count
                wide += use.count if use.bits >= bits else 0
        return wide / total if total else None


class KernelFacts(NamedTuple):
    """A kernel or device function: what its attributes state and, unless only that was asked for, what its ``code``
    says. ``code_bytes`` count padding too."""

    name: str
    arch: str
    is_kernel: bool
    code_bytes: int
    resources: Resources
    parameters: tuple[tuple[int, int], ...]
    max_threads: tuple[int, int, int] | None
    required_threads: tuple[int, int, int] | None
    max_registers: int | None
    barriers: int
    mbarriers: int
    cluster: tuple[int, int, int] | None
    max_cluster_rank: int | None
    occupancy: Occupancy | None
    code: CodeFacts | None


def resources_of(view: CubinView, kernel: KernelDef) -> Resources:
    """The numbers of ``cuobjdump -res-usage``, without looking at the code. Raises CubinError."""
    return Resources(
        view.number(Attr.REGCOUNT, kernel),
        view.number(Attr.MIN_STACK_SIZE, kernel) or 0,
        view.number(Attr.FRAME_SIZE, kernel) or 0,
        view.section_sizes.get(f".nv.shared.{kernel.name}", 0),
        view.section_sizes.get(f".nv.local.{kernel.name}", 0),
        view.constant_banks.get(kernel.name, ()),
    )


def kernel_facts(
    view: CubinView,
    kernel: KernelDef,
    threads: int | None = None,
    dynamic: int = 0,
    read_code: bool = True,
) -> KernelFacts:
    """The facts of one kernel or device function.

    ``threads`` per block and ``dynamic`` shared bytes of its launch are used for the occupancy where known.
    ``read_code`` False leaves ``code`` out and looks at attributes and sizes alone. Raises CubinError for damaged
    attributes and what :func:`code_facts` raises.
    """
    needs = resources_of(view, kernel)
    required, bound = _dims(view, kernel, Attr.REQNTID), _dims(view, kernel, Attr.MAX_THREADS)
    shared = declared_shared(view.arch, needs.shared) + dynamic
    occupied = _occupancy(view.arch, needs.registers, shared, threads, required, bound)
    return KernelFacts(
        name=kernel.name,
        arch=view.arch.name,
        is_kernel=kernel.is_entry,
        code_bytes=kernel.section.size,
        resources=needs,
        parameters=tuple((p.offset, p.size) for p in nvinfo.parameters(view.attributes(kernel))),
        max_threads=bound,
        required_threads=required,
        max_registers=_scalar(view, kernel, Attr.MAXREG_COUNT),
        barriers=_barriers(view, kernel),
        mbarriers=_scalar(view, kernel, Attr.NUM_MBARRIERS) or 0,
        cluster=_dims(view, kernel, Attr.CTA_PER_CLUSTER),
        max_cluster_rank=_scalar(view, kernel, Attr.MAX_CLUSTER_RANK),
        occupancy=occupied if kernel.is_entry else None,
        code=code_facts(view, kernel) if read_code else None,
    )


def code_facts(view: CubinView, kernel: KernelDef) -> CodeFacts:
    """What the instructions of one kernel or device function say.

    Raises CubinError for damaged code or attributes, ToolError where nvdisasm is needed and missing.
    """
    tally, place = view.tally
    section = place[kernel.section_index]
    mix: dict[str, int] = {}
    used, memory, tensor, tma = [], [], [], []
    for opcode, count in tally.opcodes[section]:
        name, unit, access = opcode.name, opcode.unit, opcode.access
        used.append((name, count))
        mix[unit] = mix.get(unit, 0) + count
        if access is not None:
            memory.append(_memory_use(access, count))
        if unit == "tensor":
            tensor.append((name, count))
        elif unit == "tma":
            tma.append((name, count))
    spills, exact = _spills(view, kernel, tally, section)
    return CodeFacts(
        instructions=tally.unpadded[section],
        register_budgets=tally.budgets[section],
        spills=spills,
        spills_exact=exact,
        local_accesses=tally.local[section],
        opcodes=tuple(used),
        mix=tuple(sorted(mix.items())),
        memory=tuple(memory),
        tensor=tuple(tensor),
        tma=tuple(tma),
        loops=tally.loops[section],
        engine=tally.code.engine,
    )


@lru_cache(maxsize=1 << 13)
def _memory_use(access: Access, count: int) -> MemoryUse:
    return MemoryUse(access.opcode, access.space, access.action, access.bits, access.modifiers, count)


def _scalar(view: CubinView, kernel: KernelDef, code: Attr) -> int | None:
    found = view.attribute(code, kernel)
    if found is None:
        return None
    if found.format != 4:
        return found.value
    return found.words[0] if len(found.words) == 1 else None


def _dims(view: CubinView, kernel: KernelDef, code: Attr) -> tuple[int, int, int] | None:
    found = view.attribute(code, kernel)
    return None if found is None else nvinfo.dims((found,), code)


def _barriers(view: CubinView, kernel: KernelDef) -> int:
    """Named barriers: attribute NUM_BARRIERS, before CUDA 12.8 bits 20-26 of the section's flags."""
    stated = _scalar(view, kernel, Attr.NUM_BARRIERS)
    return stated & 0xFF if stated is not None else kernel.section.flags >> _BARRIER_SHIFT & _BARRIER_MASK


def _spills(view: CubinView, kernel: KernelDef, tally: Tally, section: int) -> tuple[int, bool]:
    """(spill loads and stores, whether the compiler says so)."""
    end = len(view.code(kernel)) * view.arch.instruction_size  # a copy of the code behind it may be left out
    marked = sum(
        1
        for record in view.attributes(kernel)
        if record.code == Attr.ANNOTATIONS
        for kind, offset in zip(record.words[::2], record.words[1::2], strict=False)
        if kind == _SPILL and offset < end
    )
    if marked or view.marks_spills or not tally.local[section]:
        return marked, True
    return tally.slots[section], False


def _occupancy(
    arch: Arch,
    registers: int | None,
    shared: int,
    launched: int | None,
    required: tuple[int, int, int] | None,
    bound: tuple[int, int, int] | None,
) -> Occupancy | None:
    if registers is None:
        return None
    threads, basis = ASSUMED_THREADS, "assumed"
    for count, name in ((launched, "launch"), (_product(required), "required"), (_product(bound), "bound")):
        if count:
            threads, basis = count, name
            break
    ctas = occupancy(arch, registers, threads, shared)
    warps = ctas * -(-threads // 32)
    return Occupancy(threads, basis, ctas, warps, warps / arch.warps_per_sm)


def _product(dims: tuple[int, int, int] | None) -> int | None:
    return None if dims is None else dims[0] * dims[1] * dims[2]
