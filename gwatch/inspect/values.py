"""What a register may hold, as far as addresses and conditions need it."""

from __future__ import annotations

from dataclasses import dataclass

from gwatch.inspect.linear import Form, Kind

Register = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Value:
    """Origins of a value. ``base``: byte offsets in constant bank 0 that were only added; ``scaled``: those that
    were multiplied or shifted; ``specials``: special registers; ``products``: (bank offset, whether the other
    factor varies from thread to thread); ``loaded``: it depends on a value read from global memory."""

    base: frozenset[int] = frozenset()
    scaled: frozenset[int] = frozenset()
    specials: frozenset[str] = frozenset()
    products: frozenset[tuple[int, bool]] = frozenset()
    loaded: bool = False

    def __or__(self, other: Value) -> Value:
        if self == other or other == NOTHING:
            return self
        return Value(
            self.base | other.base,
            self.scaled | other.scaled,
            self.specials | other.specials,
            self.products | other.products,
            self.loaded or other.loaded,
        )

    @property
    def constants(self) -> frozenset[int]:
        """All bank offsets, however used."""
        return self.base | self.scaled

    @property
    def per_thread(self) -> bool:
        """Whether it varies between the threads of a block."""
        return self.loaded or any(
            name.startswith(("SR_TID", "SR_LANE", "SR_VIRTID", "SR_EQMASK", "SR_LTMASK")) for name in self.specials
        )

    @property
    def across(self) -> bool:
        """Whether it varies between neighbouring threads, which differ in the first of their numbers."""
        return any(name.startswith(("SR_TID.X", "SR_LANE", "SR_EQMASK", "SR_LTMASK")) for name in self.specials)

    def multiplied(self) -> Value:
        """The same origins after a multiplication or shift."""
        return Value(frozenset(), self.constants, self.specials, self.products, self.loaded)


NOTHING = Value()


@dataclass(frozen=True, slots=True)
class Atom:
    """A part of a sum that isn't followed further. ``zeros``: its low bits that are zero; ``per_thread``,
    ``iterates``: whether it differs between the threads of a block, and between iterations of a loop; ``parameters``:
    offsets in constant bank 0 that it was made from; ``loaded``: whether memory was read for it; ``across``: whether it
    differs between the threads of a warp, as far as the names of the special registers say; ``loop``: the innermost
    loop that it counts the iterations of, by its first block (-1: none)."""

    kind: Kind
    zeros: int = 0
    per_thread: bool = False
    iterates: bool = False
    parameters: frozenset[int] = frozenset()
    loaded: bool = False
    across: bool = False
    loop: int = -1


@dataclass(frozen=True, slots=True)
class Held:
    """What a register holds: its ``value``'s origins, a ``number`` that two registers share when the same operation on
    the same inputs made them (value numbering), and its low 32 bits as a sum (None: that number itself). Under the
    condition ``guard`` ("" for none) it holds ``guarded`` instead."""

    value: Value
    number: int
    form: Form | None = None
    guard: str = ""
    guarded: tuple[Value, int, Form | None] = (NOTHING, -1, None)

    def under(self, condition: str) -> tuple[Value, int, Form | None]:
        """What an instruction finds there that runs under ``condition``."""
        return self.guarded if condition and self.guard == condition else (self.value, self.number, self.form)
