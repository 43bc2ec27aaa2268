"""Prove a rewrite by another road: nvdisasm reads both images, gwatch's own tables are not asked.

The listing of the rewritten kernel without the inserted lines must be the listing of the original: same text,
same order, every label and target at the same instruction (or at the first line inserted before it). The
untouched copy must read like the original. Every offset in the kernel's ``.nv.info`` must point at the
instruction it pointed at. Tables of code offsets (jump tables, functions that pointers name) must hold, where the
changed code reads them, the new offset of each entry, and for the untouched copy what they held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.nvinfo import Attr, Attribute
from gwatch.errors import HazardError
from gwatch.rewrite.result import Rewritten
from gwatch.sass import nvdisasm
from gwatch.sass.listing import ListedSection, parse_listing

SIZE = 16
_NAMED = re.compile(r"`\(([^()`]+)\)|(\.L_x_\d+)")
_INDIRECT = re.compile(r"^(?P<head>(?:@!?U?P\w+ )?BRXU? U?R\d+ )(?P<number>-?0x[0-9a-f]+)")
_TABLE = re.compile(r"(?P<head>^.*\bU?LDCU?\S* .*c\[0x2\]\[(?P<index>U?R\w+)?)\+?(?P<number>-?0x[0-9a-f]+)?\]")
_THROUGH = re.compile(r"(?:@!?U?P\w+ )?CALL\S* U?R\d+ ")
_POINTER = 8
# Attribute -> (32-bit words per record, which of them are offsets).
_OFFSETS: dict[int, tuple[int, tuple[int, ...]]] = {
    Attr.EXIT_INSTR_OFFSETS: (1, (0,)),
    Attr.COOP_GROUP_INSTR_OFFSETS: (1, (0,)),
    Attr.INT_WARP_WIDE_INSTR_OFFSETS: (1, (0,)),
    Attr.SYSCALL_OFFSETS: (1, (0,)),
    Attr.MBARRIER_INSTR_OFFSETS: (4, (0,)),
    Attr.UNUSED_LOAD_BYTE_OFFSET: (2, (0,)),
    Attr.ANNOTATIONS: (2, (1,)),
    Attr.INSTR_REG_MAP: (3, (0,)),
    Attr.ATOM16_EMUL_INSTR_REG_MAP: (2, (0,)),
}


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared: ``instructions`` of the original, ``inserted`` lines taken out, ``targets`` and
    ``labels`` followed, ``offsets`` of attributes, ``copies`` of the code, ``entries`` of tables.
    """

    instructions: int
    inserted: int
    targets: int
    labels: int
    offsets: int
    copies: int
    entries: int = 0


class _Comparison:
    def __init__(self, original: bytes, result: Rewritten) -> None:
        self.result = result
        self.before = _section(original, result.kernel)
        self.after = _section(result.data, result.kernel)
        self.place = result.place_map.tolist()
        self.target = result.target_map.tolist()
        self.targets = self.labels = self.offsets = self.entries = 0
        self.entry = sum(site.count for site in result.sites if site.index < 0)
        self.returns = set(result.returns)
        self.banks = _bank(original, result.kernel), _bank(result.data, result.kernel)
        self.stride = len(self.banks[1]) - len(self.banks[0])
        self.moved_loads: dict[int, int] = {}
        self.still_loads: dict[int, int] = {}
        self.edited = {edit.index for edit in result.edits}

    def fail(self, what: str) -> HazardError:
        return HazardError("verify", f"{self.result.kernel}: {what}")

    def run(self, original: bytes) -> Verified:
        old, new = self.before.instructions, self.after.instructions
        if len(old) != len(self.place) or len(new) != len(self.result.words):
            raise self.fail(
                f"nvdisasm lists {len(old)} and {len(new)} instructions, not {len(self.place)} and "
                f"{len(self.result.words)}"
            )
        inserted = {index for index, flag in enumerate(self.result.inserted.tolist()) if flag}
        start = self.result.twin if self.result.twin is not None else len(new)
        kept = [index for index in range(start) if index not in inserted]
        if kept[: len(old)] != self.place:
            raise self.fail("the inserted lines are not where the place map says")
        for index in kept[len(old) :]:
            if not new[index].text.startswith("NOP"):
                raise self.fail(f"padding line {index} is {new[index].text}")
        for index, line in enumerate(old):
            self._line(index, line.text, new[self.place[index]].text)
            if self.result.twin is not None:
                self._twin(index, line.text, new[self.result.twin + index].text)
        self._labels()
        self._attributes(original)
        self._tables(original)
        return Verified(
            len(old),
            len(inserted),
            self.targets,
            self.labels,
            self.offsets,
            1 + (self.result.twin is not None),
            self.entries,
        )

    def _number(self, section: ListedSection, name: str) -> int | None:
        if name in section.labels:
            return section.labels[name] // SIZE
        for function in section.functions:
            if function.name == name:
                return function.offset // SIZE
        return None

    def _plain(self, section: ListedSection, text: str) -> tuple[str, list[int]]:
        """The text with code positions cut out, and those positions."""
        found: list[int] = []

        def cut(match: re.Match[str]) -> str:
            number = self._number(section, match[1] or match[2])
            if number is None:
                return match[0]
            found.append(number)
            return "<>"

        return _NAMED.sub(cut, text), found

    def _moved(self, number: int, returning: bool) -> int:
        moved = self.target[number]
        return int(moved + self.entry if number == 0 and not returning else moved)

    def _line(self, index: int, old: str, new: str) -> None:
        if index in self.edited:
            old = old.replace(".reuse", "")
        before, targets = self._plain(self.before, old)
        after, reached = self._plain(self.after, new)
        if index in self.returns or index in self.result.origins:
            before, after = (re.sub(r"0x[0-9a-f]+$", "", text) for text in (before, after))
            address = [int(re.findall(r"0x[0-9a-f]+", text)[-1], 16) // SIZE for text in (old, new)]
            targets, reached = [address[0]], [address[1]]
        jump, jumps = _INDIRECT.match(before), _INDIRECT.match(after)
        if jump and jumps:
            # Both count from the start of the section.
            for match, place in ((jump, index), (jumps, self.place[index])):
                if int(match["number"], 16) != -(place + 1) * SIZE:
                    raise self.fail(f"instruction {index} ({match[0]}) doesn't count from the section's start")
            before, after = (match.re.sub(match["head"], text) for match, text in ((jump, before), (jumps, after)))
        load, loads = _TABLE.match(before), _TABLE.match(after)
        if load and loads and before != after:
            start = int(load["number"] or "0", 16)
            self.moved_loads[index] = start + self._carried(index, load["index"])
            if int(loads["number"] or "0", 16) != start + self.stride or not self.stride:
                raise self.fail(f"instruction {index} ({old}) reads a table elsewhere: {new}")
            before, after = (match.re.sub(match["head"], text) for match, text in ((load, before), (loads, after)))
        elif load:
            self.still_loads[index] = int(load["number"] or "0", 16) + self._carried(index, load["index"])
        if before != after:
            raise self.fail(f"instruction {index} reads {old!r}, now {new!r}")
        counts = "RET" in old or _THROUGH.match(old) is not None
        wanted = [self._moved(number, counts) for number in targets]
        if index in self.result.origins:
            wanted = [self.place[number] for number in targets]
        if wanted != reached:
            raise self.fail(f"instruction {index} ({old}) leads to {reached}, not {wanted}")
        self.targets += len(targets)

    def _carried(self, index: int, register: str | None) -> int:
        """The constant that nvlink's code adds to a table's index and takes away again in the load."""
        wanted = re.compile(rf"(?:VIADD|U?IADD3?)\S* {register}, (?:PT, )*U?R\d+, (0x[0-9a-f]+)(?:, U?RZ)? ?;?$")
        for line in reversed(self.before.instructions[max(0, index - 200) : index]):
            if re.search(rf"^(?:@!?U?P\w+ )?\S+ {register},", line.text):
                found = wanted.search(line.text)
                return int(found[1], 16) if found else 0
        return 0

    def _twin(self, index: int, old: str, new: str) -> None:
        assert self.result.twin is not None
        before, targets = self._plain(self.before, old)
        after, reached = self._plain(self.after, new)
        if before != after or [number + self.result.twin for number in targets] != reached:
            raise self.fail(f"the copy of instruction {index} reads {new!r}, not {old!r}")

    def _labels(self) -> None:
        known = {offset // SIZE for offset in self.after.labels.values()}
        known |= {function.offset // SIZE for function in self.after.functions}
        count = len(self.place)
        for name, offset in self.before.labels.items():
            number = offset // SIZE
            if (
                number < count
                and not {self._moved(number, False), self.target[number], self.place[number]} & known
            ):
                raise self.fail(f"label {name} of instruction {number} is gone")
            self.labels += 1

    def _tables(self, original: bytes) -> None:
        """Tables of code offsets: found by what the records and symbols say, compared entry by entry."""
        old, new = self.banks
        lists = _lists(original, self.result.kernel)
        starts: dict[int, list[int]] = {}
        for start in {*self.moved_loads.values(), *self.still_loads.values()}:
            for targets in lists:
                wanted = b"".join(target.to_bytes(4, "little") for target in targets)
                if targets and old[start : start + len(wanted)] == wanted:
                    known = starts.get(start, [])
                    starts[start] = max(known, [start + 4 * place for place in range(len(targets))], key=len)
        functions = _functions(original, self.result.kernel, old)
        if functions:
            starts[0] = [_POINTER * (1 + place) for place in range(functions)]
        for index, start in self.moved_loads.items():
            if start not in starts:
                raise self.fail(f"instruction {index} reads c[0x2][{start:#x}] elsewhere, which is no table")
        if self.stride and new[: len(old)] != old:
            raise self.fail("the tables of the untouched copy changed")
        for index, start in self.still_loads.items():
            if start in starts and self.stride:
                raise self.fail(f"instruction {index} still reads the old table at c[0x2][{start:#x}]")
        fresh = new[self.stride :]
        moved = {place for places in starts.values() for place in places}
        if len(fresh) != len(old):
            raise self.fail(f"the tables have {len(fresh)} bytes, not {len(old)}")
        for place in range(0, len(old) - 3, 4):
            before, after = (int.from_bytes(bank[place : place + 4], "little") for bank in (old, fresh))
            if before == after and place not in moved:
                continue
            index, rest = divmod(before, SIZE)
            if rest or index >= len(self.target) or after != self.target[index] * SIZE:
                raise self.fail(f"c[0x2][{place:#x}] was {before:#x} and is {after:#x}")
            self.entries += 1
        if old[len(old) // 4 * 4 :] != fresh[len(old) // 4 * 4 :]:
            raise self.fail("constants behind the tables changed")

    def _attributes(self, original: bytes) -> None:
        old = _attributes(original, self.result.kernel)
        new = _attributes(self.result.data, self.result.kernel)
        if any("SR_CTAID.Z" in text for site in self.result.sites for text in site.texts):
            # What inserted code reads may have to be declared.
            known = {item.code for item in old}
            new = tuple(item for item in new if item.code in known or item.code != Attr.CTAIDZ_USED)
        if [item.code for item in old] != [item.code for item in new]:
            raise self.fail("the attributes are not the same ones")
        for before, after in zip(old, new, strict=True):
            if before.code in _OFFSETS:
                self._offsets(before, after)
            elif before.code == Attr.INDIRECT_BRANCH_TARGETS:
                self._records(before, after)

    def _records(self, before: Attribute, after: Attribute) -> None:
        """Branch by branch: the instruction itself, a tag, and how many targets, each the first line before it."""
        wanted: list[int] = []
        for copy in range(1 if self.result.twin is None else 2):
            start = (self.result.twin or 0) if copy else None
            words = list(before.words)
            while words:
                branch, tag, count = words[:3]
                wanted += [self._new_place(branch // SIZE, self.place, start) * SIZE, tag, count]
                wanted += [self._new_place(word // SIZE, self.target, start) * SIZE for word in words[3 : 3 + count]]
                self.offsets += 1 + count
                words = words[3 + count :]
        if wanted != list(after.words):
            raise self.fail("the lists of jump tables do not name the instructions they named")

    @staticmethod
    def _new_place(index: int, places: list[int], start: int | None) -> int:
        """Where instruction ``index`` is now: by the map, or in the copy that begins at ``start``."""
        return places[index] if start is None else start + index

    def _offsets(self, before: Attribute, after: Attribute) -> None:
        width, columns = _OFFSETS[before.code]
        copies = 1 if self.result.twin is None else 2
        old, new = before.words, after.words
        if len(new) != len(old) * copies:
            raise self.fail(f"{before.name} has {len(new)} words, not {len(old) * copies}")
        expected = []
        for copy in range(copies):
            for position, word in enumerate(old):
                if position % width in columns:
                    index = word // SIZE
                    word = (self.place[index] if copy == 0 else (self.result.twin or 0) + index) * SIZE
                    self.offsets += 1
                expected.append(word)
        if sorted(_records(expected, width)) != sorted(_records(new, width)):
            raise self.fail(f"{before.name} does not point at the instructions it pointed at")


def _records(words: object, width: int) -> list[tuple[int, ...]]:
    flat = list(words)  # type: ignore[call-overload]
    return [tuple(flat[at : at + width]) for at in range(0, len(flat), width)]


def _section(image: bytes, kernel: str) -> ListedSection:
    number = Cubin.from_bytes(image).get_kerneldef_by_name(kernel).symbol.index
    listing = parse_listing(nvdisasm.disassemble_cubin(image, "-c", "-fun", str(number)))
    section, _ = listing.function(kernel)
    return section


def _bank(image: bytes, kernel: str) -> bytes:
    """The kernel's constant bank 2; empty where it has none."""
    cubin = Cubin.from_bytes(image)
    section = cubin.elf.find(f".nv.constant2.{kernel}")
    return b"" if section is None or not section.in_file else cubin.elf.content(section)


def _lists(image: bytes, kernel: str) -> list[tuple[int, ...]]:
    """The targets of each indirect branch, in bytes, as the records say."""
    found = []
    for attribute in _attributes(image, kernel):
        words = list(attribute.words) if attribute.code == Attr.INDIRECT_BRANCH_TARGETS else []
        while words:
            found.append(tuple(words[3 : 3 + words[2]]))
            words = words[3 + words[2] :]
    return found


def _functions(image: bytes, kernel: str, bank: bytes) -> int:
    """How many functions the pointers' table at the start of the bank names."""
    symbols = {symbol.value for symbol in Cubin.from_bytes(image).get_kerneldef_by_name(kernel).inner_functions}
    count = 0
    while bank[:_POINTER] == (1).to_bytes(_POINTER, "little"):
        at = _POINTER * (1 + count)
        if len(bank) < at + _POINTER or int.from_bytes(bank[at : at + _POINTER], "little") not in symbols:
            break
        count += 1
    return count


def _attributes(image: bytes, kernel: str) -> tuple[Attribute, ...]:
    return Cubin.from_bytes(image).get_kerneldef_by_name(kernel).attributes


def verify(original: bytes, result: Rewritten) -> Verified:
    """Compare ``original`` with ``result`` through nvdisasm.

    Raises HazardError ``[verify]`` for the first difference, ToolError when nvdisasm is missing.
    """
    return _Comparison(original, result).run(original)
