"""Values of the instruction syntax tree: what stands between the commas.

Every node is an immutable value that remembers how it was written, so ``str(node)`` is the source text
exactly. Nodes are shared between lines; compare them by value. The tree says what the text says and no more:
whether a register is read or written, its width, and operands that the text hides are questions for the ISA
tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gwatch.sass.shape import Value, parse_value

ZERO_NAMES = {"R": "RZ", "UR": "URZ", "P": "PT", "UP": "UPT"}
"""Register file -> name of its register without an index (reads as zero, or as true)."""


@dataclass(frozen=True, slots=True)
class Register:
    """``R4``, ``UR2``, ``P0``, ``UP1``, ``B6``, ``SB0``, ``gsb0``; index None for RZ, URZ, PT and UPT."""

    file: str
    index: int | None

    def __str__(self) -> str:
        return ZERO_NAMES[self.file] if self.index is None else f"{self.file}{self.index}"


@dataclass(frozen=True, slots=True)
class Virtual:
    """A snippet's own register ``%r0``, or ``%r0+1`` for the next register of the same tuple."""

    name: str
    offset: int | None = None

    def __str__(self) -> str:
        return f"%{self.name}" if self.offset is None else f"%{self.name}+{self.offset}"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A snippet's ``{name}``: an immediate or a place that is filled in when the snippet is inserted."""

    name: str

    def __str__(self) -> str:
        return f"{{{self.name}}}"


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number as written: ``0x10``, ``-1.5``, ``+INF``, ``-QNAN``. nvdisasm puts a blank behind some
    NaNs."""

    text: str
    blank: str = ""

    @property
    def value(self) -> Value:
        """int, float, or for a NaN its text: the payload is not printed. ``7060`` may also be a float."""
        return parse_value(self.text)

    def __str__(self) -> str:
        return self.text + self.blank


@dataclass(frozen=True, slots=True)
class Name:
    """A word: special register ``SR_TID``, control register ``Rpc``, ``PR``, ``2D``, swizzle ``PNPPPPPP``."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the code by name, written `` `(.L_x_2) ``; the expression inside is kept as it is."""

    symbol: str

    def __str__(self) -> str:
        return f"`({self.symbol})"


@dataclass(frozen=True, slots=True)
class Relocation:
    """Part of an address that the linker or loader fills in: ``32@lo(symbol)``, ``32@hi(symbol)``."""

    bits: str
    part: str
    symbol: str

    def __str__(self) -> str:
        return f"{self.bits}@{self.part}({self.symbol})"


@dataclass(frozen=True, slots=True)
class BarrierSet:
    """Scoreboards of a DEPBAR: ``{5,3,2}``, in the order written."""

    items: tuple[int, ...]

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.items)) + "}"


@dataclass(frozen=True, slots=True)
class Address:
    """The inside of one pair of brackets: terms joined by ``+``, e.g. ``R176.64+UR27+0x785``."""

    terms: tuple[Operand, ...]

    @property
    def base(self) -> Operand | None:
        """The general register term (also RZ), or a snippet's register in first place; None if there is
        none."""
        for term in self.terms:
            if isinstance(term.core, Register) and term.core.file == "R":
                return term
        first = self.terms[0]
        return first if isinstance(first.core, Virtual) else None

    @property
    def uniform(self) -> Operand | None:
        """The uniform register term, None if there is none."""
        for term in self.terms:
            if isinstance(term.core, Register) and term.core.file == "UR":
                return term
        return None

    @property
    def offset(self) -> Immediate | Placeholder | None:
        """The constant term, None if none is written (the offset is zero then)."""
        core = self.terms[-1].core
        return core if isinstance(core, (Immediate, Placeholder)) else None

    def __str__(self) -> str:
        return "+".join(map(str, self.terms))


@dataclass(frozen=True, slots=True)
class Constant:
    """``c[0x0][0x28]`` or, with the bank in a uniform register, ``cx[UR2][0xaca4]``.

    ``gap`` is the blank that nvdisasm prints between the brackets for some opcodes.
    """

    bindless: bool
    bank: Operand
    address: Address
    gap: str = ""

    def __str__(self) -> str:
        return f"{'cx' if self.bindless else 'c'}[{self.bank}]{self.gap}[{self.address}]"


@dataclass(frozen=True, slots=True)
class Memory:
    """``[R2+0x8]``, ``desc[UR4][R2.64]``, ``a[0x3fc]``, ``gdesc[UR8]``, ``tmem[UR4]``, ``idesc[UR1]``.

    ``space`` is the word in front ("" for none); ``descriptor`` the first of two brackets.
    """

    space: str
    address: Address
    descriptor: Address | None = None

    def __str__(self) -> str:
        front = "" if self.descriptor is None else f"[{self.descriptor}]"
        return f"{self.space}{front}[{self.address}]"


Core = (Register | Virtual | Placeholder | Immediate | Name | Label | Relocation | BarrierSet | Constant
        | Memory)


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: its core and what is written around it.

    ``prefix`` is ``-``, ``!``, ``~`` or nothing; ``absolute`` means bars; ``inner`` are the suffixes inside
    the bars (``|R27.H1|``), ``suffixes`` those outside or, without bars, all (``R2.64`` -> ``("64",)``).
    """

    core: Core
    prefix: str = ""
    absolute: bool = False
    inner: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()

    @property
    def reuse(self) -> bool:
        """True if the operand is marked ``.reuse``."""
        return "reuse" in self.suffixes or "reuse" in self.inner

    def registers(self) -> Iterator[Register | Virtual]:
        """Every register named in the operand, also inside brackets, in the order written."""
        core = self.core
        if isinstance(core, (Register, Virtual)):
            yield core
        elif isinstance(core, Constant):
            yield from core.bank.registers()
            yield from _registers(core.address)
        elif isinstance(core, Memory):
            if core.descriptor is not None:
                yield from _registers(core.descriptor)
            yield from _registers(core.address)

    def __str__(self) -> str:
        suffixes = "".join(["." + name for name in self.suffixes])
        if self.absolute:
            inner = "".join(["." + name for name in self.inner])
            return f"{self.prefix}|{self.core}{inner}|{suffixes}"
        return f"{self.prefix}{self.core}{suffixes}"


def _registers(address: Address) -> Iterator[Register | Virtual]:
    for term in address.terms:
        yield from term.registers()
