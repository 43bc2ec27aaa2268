"""Register files, and the uniform registers and predicates of inserted code: those that no code which may run names.

Scratch predicates of code at the kernel's entry may be any: nothing is live there yet. General registers are a matter
of :mod:`gwatch.rewrite.planning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gwatch.errors import RegisterPressureError, UnsupportedError
from gwatch.sass.arch import Arch, allocated_registers

SPARE = 2
STACK_POINTER = 1
EXCLUDED_KEYS = {"general": "R", "uniform_general": "UR", "predicate": "P"}


def parse_excluded(excluded: Mapping[str, Iterable[int]] | None) -> dict[str, frozenset[int]]:
    """``{"general": [...], "uniform_general": [...], "predicate": [...]}`` by register file.

    Raises UnsupportedError ``[excluded-registers]`` for another key or a number outside its file.
    """
    limits = {"R": 255, "UR": 255, "P": 7}
    out = {file: frozenset[int]() for file in limits}
    for key, numbers in (excluded or {}).items():
        file = EXCLUDED_KEYS.get(key)
        if file is None:
            raise UnsupportedError(
                "excluded-registers",
                f"excluded registers of kind {key!r}",
                "kinds are: " + " ".join(EXCLUDED_KEYS),
            )
        chosen = frozenset(numbers)
        for number in chosen:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < limits[file]:
                raise UnsupportedError(
                    "excluded-registers", f"{file}{number} in excluded registers does not exist"
                )
        out[file] = chosen
    return out


@dataclass(slots=True)
class RegisterFile:
    """Hands out aligned groups of one file. ``taken`` are numbers that may not be used."""

    file: str
    first: int
    limit: int
    taken: frozenset[int]
    used: set[int] = field(default_factory=set)
    barred: frozenset[int] = frozenset()

    def take(self, width: int, descending: bool = False) -> int | None:
        """The first of ``width`` free registers aligned to ``width``, or None."""
        starts = range(-(-self.first // width) * width, self.limit - width + 1, width)
        for start in reversed(starts) if descending else starts:
            group = set(range(start, start + width))
            if not group & self.taken and not group & self.used and not group & self.barred:
                self.used |= group
                return start
        return None


@dataclass(slots=True)
class Allocator:
    """Uniform registers and predicates for one rewritten kernel.

    ``busy_uniforms`` and ``busy_predicates`` are named by its code and its callees'. Raises RegisterPressureError
    ``[uniform-registers]`` or ``[predicates]`` naming the kernel and what was asked for.
    """

    arch: Arch
    kernel: str
    busy_uniforms: frozenset[int]
    busy_predicates: frozenset[int]
    excluded: dict[str, frozenset[int]]
    entry_predicate: RegisterFile = field(init=False)
    entry_uniform: RegisterFile = field(init=False)
    uniform: RegisterFile = field(init=False)
    predicate: RegisterFile = field(init=False)

    def __post_init__(self) -> None:
        self.uniform = RegisterFile("UR", 0, self.arch.uniform_zero, self.excluded["UR"] | self.busy_uniforms)
        self.predicate = RegisterFile(
            "P", 0, self.arch.predicate_true, self.excluded["P"] | self.busy_predicates
        )
        self.entry_predicate = RegisterFile("P", 0, self.arch.predicate_true, self.excluded["P"])
        self.entry_uniform = RegisterFile("UR", 0, self.arch.uniform_zero, self.excluded["UR"])

    def take(self, file: str, width: int, name: str, entry: bool = False) -> int:
        """``width`` aligned registers of ``file`` ("UR" or "P") for the virtual register ``name``.

        ``entry``: needed only while the kernel is entered, so any register will do that is not taken otherwise (take
        those that live longer first); a uniform one that nobody names is still the better choice, for a store that
        reads it need not be waited for.
        """
        pool = self.uniform if file == "UR" else self.predicate
        if entry and file == "P":
            self.entry_predicate.taken |= pool.used
            pool = self.entry_predicate
        start = pool.take(width, descending=True)
        if start is None and entry and file == "UR":
            self.entry_uniform.taken |= pool.used
            start = self.entry_uniform.take(width, descending=True)
        if start is not None:
            return start
        wanted = f"{self.kernel}: {width} {file} register{'s' * (width > 1)} for %{name}"
        if file == "UR":
            raise RegisterPressureError(
                "uniform-registers", f"{wanted}: its code names or excludes every such group"
            )
        raise RegisterPressureError("predicates", f"{wanted}: its code names or excludes all of P0-P6")

    def keep_to(self, lasting: frozenset[tuple[str, int]] | None) -> None:
        """Hand out only uniform registers in ``lasting`` from now on; None: any again."""
        self.uniform.barred = frozenset(
            number
            for number in range(self.arch.uniform_zero)
            if lasting is not None and ("UR", number) not in lasting
        )


def check_launchable(arch: Arch, kernel: str, before: int, after: int, max_threads: int | None) -> None:
    """Refuse a count with which the largest CTA that the kernel promises to accept no longer fits.

    Raises RegisterPressureError ``[launch-bounds]``.
    """
    if after <= before or not max_threads:
        return
    warps = -(-max_threads // 32)
    if (
        allocated_registers(arch, after) * 32 * warps
        > arch.registers_per_sm
        >= (allocated_registers(arch, before) * 32 * warps)
    ):
        raise RegisterPressureError(
            "launch-bounds",
            f"{kernel}: {after} registers (now {before}) for up to {max_threads} threads a CTA exceed the "
            f"{arch.registers_per_sm} of an SM, so such a launch would fail",
            "record less, or compile the kernel with smaller launch bounds",
        )
