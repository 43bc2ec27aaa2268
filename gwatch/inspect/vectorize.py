"""Every global load and store of a kernel: how wide it is, on which argument, and why it isn't wider.

Facts (address, guard, width, argument) come from the code. Where a package describes the kernel
(:mod:`gwatch.inspect.triton_source`), its alignment promises decide the cause; for a bare cubin the address
arithmetic does: what could have been one access, and what stood in the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from gwatch.cuda.binary import KernelDef, nvinfo
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.inspect.causes import Cause, Place, Surroundings, explain
from gwatch.inspect.demangle import demangle
from gwatch.inspect.linear import Form, Kind
from gwatch.inspect.loops import find_blocks
from gwatch.inspect.opcodes import access_of
from gwatch.inspect.order import Order
from gwatch.inspect.origin import KEPT_PREDICATES, Seen, trace
from gwatch.inspect.sums import Sums
from gwatch.inspect.triton_source import Argument, TritonKernel
from gwatch.inspect.values import NOTHING, Atom, Value
from gwatch.inspect.view import CubinView

_ADDRESS = re.compile(r"\[R([0-9]+|Z)((?:\.U32|\.64)?)(?:\+UR([0-9]+))?(?:\+(-?0x[0-9a-f]+))?\]")
_UNIFORM = re.compile(r"\[UR([0-9]+)(?:\.64)?(?:\+(-?0x[0-9a-f]+))?\]")
_GUARD = re.compile(r"@(!?)(U?P)([0-9])")
WANTED = frozenset({"LDG", "STG", "LD", "ST", "LDGSTS"})
FULL_BITS = 128
WORD_BYTES = 4
_SCRATCH = 2
"""Scratch pointers that Triton passes behind a kernel's own arguments, at most: global memory's, the profiler's."""
GUESSED = "*"
"""Type of an argument of 8 bytes of which nothing is known: a pointer, unless something is multiplied with it."""


@dataclass(frozen=True, slots=True)
class GlobalAccess:
    """One global load or store. ``pc`` in bytes from the kernel's start; ``argument`` its base pointer ("" when it
    can't be told) with ``divisibility`` promised for it (None: not promised, or not known); ``line`` is (file,
    number, text) with an empty text where the source isn't at hand."""

    pc: int
    text: str
    opcode: str
    action: str
    guard: str
    bits: int
    argument: str
    argument_type: str
    divisibility: int | None
    line: tuple[str, int, str] | None
    cause: Cause | None

    @property
    def bytes(self) -> int:
        """Bytes a thread moves."""
        return self.bits // 8

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "pc": self.pc,
            "text": self.text,
            "opcode": self.opcode,
            "action": self.action,
            "guard": self.guard,
            "bits": self.bits,
            "bytes": self.bytes,
            "argument": self.argument,
            "argument_type": self.argument_type,
            "divisibility": self.divisibility,
            "line": None
            if self.line is None
            else {"file": self.line[0], "number": self.line[1], "text": self.line[2]},
            "cause": None if self.cause is None else self.cause.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Vectorization:
    """All global accesses of a kernel by address. ``described``: a package says how the kernel was made;
    ``num_warps`` and ``constants`` (block sizes and the like) are then known."""

    accesses: tuple[GlobalAccess, ...]
    described: bool
    num_warps: int | None
    shared: int | None
    constants: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "described": self.described,
            "num_warps": self.num_warps,
            "shared_bytes": self.shared,
            "constants": dict(self.constants),
            "arguments": [
                {"name": a.name, "type": a.type, "divisibility": a.divisibility} for a in self.arguments
            ],
            "accesses": [access.to_json() for access in self.accesses],
        }


def vectorization(
    view: CubinView, kernel: KernelDef, description: TritonKernel | None = None
) -> Vectorization:
    """The global accesses of ``kernel``, each narrow one with its cause.

    Raises CubinError for damaged attributes or line tables.
    """
    if description is not None and not _fits(description, view, kernel):
        description = None  # another kernel's, or another version's: its promises are none here
    code = view.code(kernel)
    blocks = find_blocks(code, view.indirect_targets(kernel))
    seen, sums = trace(code, blocks, WANTED, description is not None)
    places = _Places(view, kernel, description, sums)
    found = [place for place in map(places.of, seen) if place is not None]
    order = Order(code, blocks, found)
    around = Surroundings(places.arguments, description is not None, sums, order, places.numbers, view.is_debug)
    causes = explain(found, around)
    lines = kernel.map_address_to_line
    accesses = []
    for place in found:
        pc = place.index * view.arch.instruction_size
        argument = places.arguments[place.argument] if place.argument is not None else None
        where = lines.get(pc)
        text = description.line(where[1]) if where is not None and description is not None else ""
        accesses.append(
            GlobalAccess(
                pc=pc,
                text=place.text,
                opcode=place.access.opcode,
                action=place.access.action,
                guard=place.guard,
                bits=place.access.bits,
                argument=argument.name if argument else "",
                argument_type=argument.type if argument else "",
                divisibility=argument.divisibility if argument else None,
                line=(where[0], where[1], text) if where else None,
                cause=causes.get(place.index),
            )
        )
    return Vectorization(
        tuple(accesses),
        description is not None,
        description.num_warps if description else None,
        description.shared if description else None,
        description.constants if description else (),
        tuple(places.arguments),
    )


class _Places:
    """Turns what was seen in front of an instruction into a :class:`Place`."""

    def __init__(
        self, view: CubinView, kernel: KernelDef, description: TritonKernel | None, sums: Sums
    ) -> None:
        self.sums = sums
        records = view.attributes(kernel)
        bank = view.attribute(Attr.PARAM_CBANK, kernel)
        base = bank.words[1] & 0xFFFF if bank is not None and len(bank.words) == 2 else 0
        self.parameters = nvinfo.parameters(records)
        self.arguments = _arguments(kernel.name, [p.size for p in self.parameters], description)
        self.count = count = len(self.arguments)
        self.structures = [
            (base + p.offset, p.size, p.ordinal) for p in self.parameters if p.size > 8 and p.ordinal < count
        ]
        self.ordinal = {
            base + p.offset + at: p.ordinal for p in self.parameters for at in range(0, p.size, 4)
        }
        for ordinal in {self.ordinal[offset] for offset in sums.multiplied if offset in self.ordinal}:
            if ordinal < count and self.arguments[ordinal].type == GUESSED:
                self.arguments[ordinal] = replace(self.arguments[ordinal], type="8 bytes")
        self.size = view.arch.instruction_size
        self.skips: list[tuple[int, Seen]] = []

    def of(self, seen: Seen) -> Place | None:
        """The access at ``seen``; None for a branch or exit, which is remembered as a condition."""
        match = _GUARD.match(seen.text)
        body = seen.text.split(None, 1)[-1] if match else seen.text
        opcode = body.split(None, 1)[0]
        access = access_of(opcode)
        if access is None:
            self.skips.append((seen.block, seen))
            return None
        address, form = self._address(seen, body)
        added = [
            self.sums.atoms[atom].parameters for atom, factor in form.terms
            if factor == 1 and self.sums.atoms[atom].kind is Kind.PARAMETER
        ]  # fmt: skip
        # What the sum says is exact; origins are united where ways meet.
        argument = self._base(Value(base=frozenset().union(*added))) if added else self._base(address)
        conditions, guard_key, guard, kept = NOTHING, "", "", False
        if match:
            register = (match[2], int(match[3]))
            conditions = seen.values.get(register, NOTHING)
            guard = f"@{match[1]}{match[2]}{match[3]}"
            guard_key = f"{match[1]}{match[2]}{match[3]}:{seen.numbers.get(register, -1)}"
            kept = KEPT_PREDICATES in conditions.specials
        elif self.skips:
            skip = self.skips[-1][1]
            passed = _GUARD.match(skip.text)
            if passed:
                conditions = skip.values.get((passed[2], int(passed[3])), NOTHING)
        return Place(
            index=seen.index,
            block=seen.block,
            text=seen.text,
            access=access,
            guard=guard,
            guard_key=guard_key,
            form=form,
            offset=form.total,
            base=self._pointer(form, argument),
            argument=argument,
            scalars=self.numbers(address.constants),
            conditions=self.numbers(conditions.constants),
            products=tuple(
                (number, threads)
                for constant, threads in sorted(address.products)
                for number in self.numbers(frozenset({constant}))
            ),
            gathered=address.loaded,
            chased=self.sums.is_chased(form, seen.block),
            kept=kept,
        )

    def _address(self, seen: Seen, body: str) -> tuple[Value, Form]:
        """Origins of the address, and its low word as a sum."""
        # LDGSTS names the shared destination first; the global address is the last one.
        matches = list(_ADDRESS.finditer(body))
        unknown = self.sums.atom(self.sums.number("address", seen.index), Atom(Kind.OTHER))
        added = []
        if matches:
            match = matches[-1]
            if match[1] != "Z":
                added.append((("R", int(match[1])), match[2]))
            if match[3]:
                added.append((("UR", int(match[3])), ".64"))
            offset = int(match[4], 16) if match[4] else 0
        else:
            uniform = list(_UNIFORM.finditer(body))
            if not uniform:
                return NOTHING, unknown
            added.append((("UR", int(uniform[-1][1])), ".64"))
            offset = int(uniform[-1][2], 16) if uniform[-1][2] else 0
        value, form = NOTHING, Form()
        for (file, first), kind in added:
            value = value | seen.values.get((file, first), NOTHING)
            if kind == ".64":
                value = value | seen.values.get((file, first + 1), NOTHING)
            part = seen.forms.get((file, first), unknown)
            form = form + (part.extended() if kind == ".U32" else part)
        return value, form.plus(offset)

    def _pointer(self, form: Form, argument: int | None) -> int | None:
        """The atom of an address that is the pointer it is counted from: the argument's, else one read from memory."""
        loaded = None
        for atom, factor in form.terms:
            part = self.sums.atoms[atom]
            if factor == 1 and part.kind is Kind.PARAMETER and argument is not None:
                if self._base(Value(base=part.parameters)) == argument:
                    return atom
            elif factor == 1 and part.kind is Kind.LOADED and not part.zeros:
                loaded = atom if loaded is None else -1
        return loaded if argument is None and loaded != -1 else None

    def numbers(self, constants: frozenset[int]) -> tuple[int, ...]:
        """Ordinals of the non-pointer arguments at these bank offsets."""
        found = set()
        for constant in constants:
            ordinal = self.ordinal.get(constant)
            if ordinal is not None and ordinal < self.count:
                inside = self._inside(constant)
                found.add(ordinal if inside is None else self._named(*inside, f"{WORD_BYTES} bytes"))
        return tuple(sorted(number for number in found if not self.arguments[number].is_pointer))

    def _base(self, address: Value) -> int | None:
        """Ordinal of the pointer that the address is counted from; None when there is none, or more than one."""
        found = {self.ordinal[c] for c in address.base if c in self.ordinal}
        pointers = [n for n in found if n < len(self.arguments) and self.arguments[n].is_pointer]
        if not pointers:
            return self._member(address)
        return pointers[0] if len(pointers) == 1 else None

    def _member(self, address: Value) -> int | None:
        """Index of a pointer inside a structure passed by value, made an argument of its own ("argument 0+0x18"); None
        unless exactly one 8-byte member is counted from."""
        found = [inside for constant in address.base if (inside := self._inside(constant)) is not None]
        places = {(ordinal, offset // 8 * 8) for ordinal, offset in found}
        return self._named(*places.pop(), GUESSED) if len(places) == 1 else None

    def _inside(self, constant: int) -> tuple[int, int] | None:
        """Which structure passed by value lies at an offset of the constant bank, and how far inside it that is."""
        for start, size, ordinal in self.structures:
            if start <= constant < start + size:
                return ordinal, constant - start
        return None

    def _named(self, ordinal: int, offset: int, kind: str) -> int:
        """Index of a structure's member as an argument of its own."""
        name = f"{self.arguments[ordinal].name}+{offset:#x}"
        known = [index for index, argument in enumerate(self.arguments) if argument.name == name]
        if not known:
            self.arguments.append(Argument(name, kind, None))
        return known[0] if known else len(self.arguments) - 1


def _fits(description: TritonKernel, view: CubinView, kernel: KernelDef) -> bool:
    """Whether the kernel takes the arguments described, and behind them nothing but Triton's scratch pointers."""
    sizes = [parameter.size for parameter in nvinfo.parameters(view.attributes(kernel))]
    more = sizes[len(description.arguments) :]
    return not sizes or (len(description.arguments) <= len(sizes) and len(more) <= _SCRATCH and set(more) <= {8})


def _arguments(name: str, sizes: list[int], description: TritonKernel | None) -> list[Argument]:
    """Names and types of the parameters: the package's, else the C++ signature's, else position and size."""
    if description is not None and len(description.arguments) <= len(sizes):
        named = list(description.arguments)
        # Triton passes scratch pointers behind the kernel's own arguments.
        return named + [Argument(f"scratch{n}", "*i8", None) for n in range(len(sizes) - len(named))]
    types = _signature(demangle(name))
    if len(types) == len(sizes):
        return [
            Argument(f"argument {n}", f"*{text[:-1].strip()}" if text.endswith("*") else text, None)
            for n, text in enumerate(types)
        ]
    return [
        Argument(f"argument {n}", GUESSED if size == 8 else f"{size} bytes", None) for n, size in enumerate(sizes)
    ]


def _signature(text: str) -> list[str]:
    """Parameter types of a demangled function; [] for a name that isn't mangled."""
    if not text.endswith(")"):
        return []
    depth, parts, end = 0, [], len(text) - 1
    for at in range(len(text) - 1, -1, -1):
        if text[at] in ")]>":
            depth += 1
        elif text[at] in "([<":
            depth -= 1
            if depth == 0:
                parts.append(text[at + 1 : end].strip())
                break
        elif text[at] == "," and depth == 1:
            parts.append(text[at + 1 : end].strip())
            end = at
    plain = [part.replace(" const*", "*").replace(" __restrict", "") for part in reversed(parts)]
    return [part for part in plain if part and part != "void"]
