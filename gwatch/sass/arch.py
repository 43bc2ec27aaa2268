"""Facts per architecture, the only place that knows an SM number by its value.

Sources: the compute-capability tables of the CUDA C++ programming guide (warps, CTAs, registers and shared
memory per SM); for everything else what nvcc 13.0 writes for a small kernel on every one of these architectures
(constant-bank layout, register files, special registers, ELF flags) and what nvdisasm prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gwatch.errors import UnsupportedError

INSTRUCTION_SIZE = 16
CLOCK_REGISTER = "SR_CLOCKLO"
TIMER_REGISTER = "SR_GLOBALTIMERLO"
SM_REGISTER = "SR_VIRTUALSMID"
"""Special registers with the cycle counter, the nanosecond timer and the SM's number; the same on all architectures."""


@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture.

    ``name`` is ptxas' spelling (``sm_90a``), ``number`` the SM number (90), ``suffix`` "", "a" or "f". ``table`` names
    the ISA table, ``latency`` the table of issue distances. ``nvdisasm`` is nvdisasm's ``-b`` spelling. Sizes:
    registers and threads per SM; shared memory in bytes. ``uniform_zero`` is the index of URZ.

    Places in constant bank 0 (bytes): ``descriptor_offset`` the global-memory descriptor (None: the architecture has
    none), ``launch_dims_offset`` blockDim.x, y, z, ``grid_dims_offset`` gridDim.x, y, z, ``param_base`` the first
    kernel parameter (a kernel states its own: ``KernelDef.param_base``), ``stack_offset`` the initial stack pointer.

    ``constant_moves``: compilers read constants as operands of MOV, at fixed latency, and with LDC only at computed
    offsets. ``sum`` and ``minimum`` say how the sum and the unsigned minimum of two are written: text with places for
    the destination and the two sources. ``constant_load`` is the opcode that loads constants into uniform registers;
    ``uniform_scoreboard``: its result is announced by a scoreboard, else it comes after a fixed time. ``uniform_clock``
    is the opcode that reads the cycle counter into a uniform register. ``has_elect``: the ELECT instruction exists.
    ``hides_descriptor``: nvdisasm does not print the descriptor register of an access. ``marks_ctaid_z``: a kernel that
    reads SR_CTAID.Z must say so (attribute CTAIDZ_USED). ``section_registers``: the register count also stands in the
    code section's header. ``mercury``: compilers add a second form of the code (``.nv.capmerc`` sections), which
    ``flags`` announce. ``offset_stores``: global stores to ``[R.U32+UR]``, a 32-bit offset from an address in a uniform
    pair, were seen to work on the hardware (no compiler writes them without a descriptor). ``fixed``: opcodes of fixed
    latency here that take a scoreboard on other architectures of the same table.
    Registers are given to warps in steps of ``register_step`` a thread.
    """

    name: str
    number: int
    suffix: str
    table: str
    latency: str
    nvdisasm: str
    warps_per_sm: int
    ctas_per_sm: int
    shared_per_sm: int
    shared_per_cta: int
    shared_reserved: int
    uniform_zero: int
    descriptor_offset: int | None
    has_elect: bool
    launch_dims_offset: int
    grid_dims_offset: int
    param_base: int
    stack_offset: int
    constant_moves: bool
    sum: str
    minimum: str
    constant_load: str
    uniform_scoreboard: bool
    uniform_clock: str
    hides_descriptor: bool
    marks_ctaid_z: bool
    section_registers: bool
    mercury: bool
    offset_stores: bool
    fixed: frozenset[str]
    registers_per_sm: int = 65536
    subpartitions: int = 4
    register_zero: int = 255
    predicate_true: int = 7
    convergence_barriers: int = 16
    barriers: int = 16
    register_step: int = 8
    max_registers: int = 255
    instruction_size: int = INSTRUCTION_SIZE

    @property
    def unconfirmed(self) -> str:
        """What to say of times and scoreboards on this architecture; "" where the model was held against hardware."""
        if self.number in _CONFIRMED:
            return ""
        return f"{self.name}: model from compiler output, not confirmed on hardware"

    @property
    def flags(self) -> int:
        """ELF header flags that nvcc 13 writes (ABI 8). The suffix is not in them."""
        return 0x06000000 | self.number << 8 | (2 if self.mercury else 4)

    @property
    def flags_old(self) -> int:
        """ELF header flags of ABI 7 (CUDA 11 and 12, up to sm_90a), for code compiled from PTX of the same version."""
        return self.number << 16 | 0x500 | (0x800 if self.suffix == "a" else 0) | self.number

    @property
    def threads_per_sm(self) -> int:
        """Resident threads per SM at most."""
        return self.warps_per_sm * 32


_KIB = 1024
# number: suffixes, warps, CTAs, shared per SM, shared per CTA, reserved per CTA, URZ, descriptor, ELECT
_FACTS: dict[int, tuple[tuple[str, ...], int, int, int, int, int, int, int | None, bool]] = {
    75: (("",), 32, 16, 64, 64, 0, 63, None, False),
    80: (("",), 64, 32, 164, 163, 1, 63, 0x118, False),
    86: (("",), 48, 16, 100, 99, 1, 63, 0x118, False),
    87: (("",), 48, 16, 164, 163, 1, 63, 0x118, False),
    88: (("",), 48, 16, 164, 163, 1, 63, 0x118, False),
    89: (("",), 48, 24, 100, 99, 1, 63, 0x118, False),
    90: (("", "a"), 64, 32, 228, 227, 1, 63, 0x208, True),
    100: (("", "a", "f"), 64, 32, 228, 227, 1, 255, 0x358, True),
    103: (("", "a", "f"), 64, 32, 228, 227, 1, 255, 0x358, True),
    107: (("a", "f"), 64, 32, 228, 227, 1, 255, 0x358, True),
    110: (("", "a", "f"), 48, 24, 228, 227, 1, 255, 0x358, True),
    120: (("", "a", "f"), 48, 24, 100, 99, 1, 255, 0x358, True),
    121: (("", "a", "f"), 48, 24, 100, 99, 1, 255, 0x358, True),
}
# ISA tables by SM number: architectures of one table give their common words the same meaning.
_FAMILIES = ((75, "sm_75"), (80, "sm_80"), (90, "sm_90"), (100, "sm_100"), (120, "sm_120"))
# Distances by SM number, where compilers leave others within a family (isa/LATENCY.md).
_LATENCY_FAMILIES = tuple(sorted((*_FAMILIES, (86, "sm_86"))))
_SUM = {
    **dict.fromkeys(("sm_75", "sm_80", "sm_90"), "IADD3 {}, {}, {}, RZ"),
    "sm_100": "IADD3 {}, PT, PT, {}, {}, RZ",
    "sm_120": "IADD {}, {}, {}",
}
_MINIMUM = {
    **dict.fromkeys(("sm_75", "sm_80"), "IMNMX.U32 {}, {}, {}, PT"),
    **dict.fromkeys(("sm_90", "sm_120"), "VIMNMX.U32 {}, {}, {}, PT"),
    "sm_100": "VIMNMX.U32 {}, PT, PT, {}, {}, PT",
}
# Compilers give these no scoreboard on sm_100, and one on sm_103 and later of the same table: sm_100 has
# many double-precision units, they have few.
# Tensor-core products take none on sm_80. For sm_86 to sm_89 some compilers give them one and others none, whose
# results come after a fixed time; where one is taken it is waited for, whatever the kind.
_FIXED = {
    **dict.fromkeys((80, 86, 87, 88, 89), frozenset({"HMMA"})),
    100: frozenset({"DADD", "DFMA", "DMUL", "DSETP"}),
}
# Two that share the table of sm_100, but not this.
_MINIMUM_OF = {107: _MINIMUM["sm_120"], 110: _MINIMUM["sm_80"]}
# The model of times and scoreboards was held against an H200.
_CONFIRMED = {90}
# Tried on an H200, with offsets on both sides of 2^31.
_OFFSET_STORES = {90}


def _build() -> dict[str, Arch]:
    arches = {}
    for number, (suffixes, warps, ctas, per_sm, per_cta, reserved, zero, descriptor, elect) in _FACTS.items():
        table = max(family for family in _FAMILIES if family[0] <= number)[1]
        latency = max(family for family in _LATENCY_FAMILIES if family[0] <= number)[1]
        wide = number >= 100  # constant bank 0 starts with system values that older architectures do not have
        for suffix in suffixes:
            name = f"sm_{number}{suffix}"
            arches[name] = Arch(
                name, number, suffix, table, latency, f"SM{number}{suffix}", warps, ctas, per_sm * _KIB, per_cta * _KIB,
                reserved * _KIB, zero, descriptor, elect,
                launch_dims_offset=0x360 if wide else 0, grid_dims_offset=0x370 if wide else 0xC,
                param_base=0x380 if wide else 0x210 if number >= 90 else 0x160, stack_offset=0x37C if wide else 0x28,
                constant_moves=number < 90, sum=_SUM[table], minimum=_MINIMUM_OF.get(number, _MINIMUM[table]),
                constant_load="LDCU" if wide else "ULDC", uniform_scoreboard=wide,
                uniform_clock="CS2UR.32" if number >= 120 else "S2UR", hides_descriptor=80 <= number < 90,
                marks_ctaid_z=number < 90, section_registers=number < 90, mercury=wide,
                offset_stores=number in _OFFSET_STORES, fixed=_FIXED.get(number, frozenset()))
    return arches


ARCHES: dict[str, Arch] = _build()


def arch_by_name(name: str) -> Arch:
    """The architecture called ``name``: "90a", "sm_90a", "SM90a", "sm90a", "compute_90a".

    Raises UnsupportedError ``[arch-unknown]`` naming the known ones.
    """
    match = re.fullmatch(r"(?:sm_?|compute_?)?(\d+)([af]?)", name.strip(), re.IGNORECASE)
    arch = ARCHES.get(f"sm_{match[1]}{match[2].lower()}") if match else None
    if arch is None:
        raise UnsupportedError("arch-unknown", f"architecture {name!r} is not known",
                               "known: " + " ".join(ARCHES))
    return arch


def arch_of(arch: Arch | str) -> Arch:
    """``arch`` itself, or the architecture of that name."""
    return arch if isinstance(arch, Arch) else arch_by_name(arch)


def allocated_registers(arch: Arch | str, registers: int) -> int:
    """Registers per thread that the hardware sets aside for a kernel declaring ``registers``."""
    step = arch_of(arch).register_step
    return max(step, -(-registers // step) * step)


def occupancy(arch: Arch | str, registers: int, threads_per_cta: int, shared_bytes: int = 0) -> int:
    """CTAs resident per SM (0: the CTA does not fit).

    ``registers`` per thread, ``threads_per_cta`` 1..1024, ``shared_bytes`` static + dynamic per CTA with the
    largest shared-memory carve-out. Registers are allocated per warp in steps of 256 within a quarter of the
    SM.
    """
    facts = arch_of(arch)
    if not 1 <= threads_per_cta <= 1024 or registers > facts.max_registers or registers < 0:
        return 0
    if shared_bytes > facts.shared_per_cta:
        return 0
    warps = -(-threads_per_cta // 32)
    per_warp = allocated_registers(facts, registers) * 32
    resident = facts.registers_per_sm // facts.subpartitions // per_warp * facts.subpartitions
    limits = [facts.ctas_per_sm, facts.warps_per_sm // warps, resident // warps]
    shared = -(-(shared_bytes + facts.shared_reserved) // 128) * 128
    if shared:
        limits.append(facts.shared_per_sm // shared)
    return min(limits)


def declared_shared(arch: Arch | str, section_bytes: int) -> int:
    """Static shared memory as the program declares it, of a kernel whose ``.nv.shared`` section has
    ``section_bytes``: from sm_90 on the section begins with what the driver reserves in each CTA (``ptxas -v`` leaves
    it out, the program's variables come behind it).
    """
    facts = arch_of(arch)
    return max(section_bytes - facts.shared_reserved, 0) if facts.number >= 90 else section_bytes


def free_ceiling(arch: Arch | str, registers: int) -> int:
    """The largest register count that keeps as many warps resident as ``registers`` does, whatever the launch's shape:
    registers are given to warps within a quarter of the SM, and often fewer warps fit than the steps suggest.
    """
    facts = arch_of(arch)
    quarter = facts.registers_per_sm // facts.subpartitions
    most = facts.warps_per_sm // facts.subpartitions

    def warps(count: int) -> int:
        return min(most, quarter // (allocated_registers(facts, count) * 32))

    ceiling = min(allocated_registers(facts, registers), facts.max_registers)
    while ceiling < facts.max_registers:
        following = min(ceiling + facts.register_step, facts.max_registers)
        if warps(following) < warps(registers):
            break
        ceiling = following
    return max(ceiling, registers)
