"""The snippets of the tracer: prologue, record, exit pair. Plain SASS text like any user's snippet.

State from the prologue to the last site: ``%off`` (running byte offset of the lane, whose high bits are its
sequence), ``%base`` (the lane's first slot, low address word), the high word of ``%addr`` (an address pair), and the
uniform pair ``%desc`` (the global-memory descriptor); for exit pairs also the uniform ``%head`` (the warp's header).
``%rec`` (the record) and the low word of ``%addr`` are scratch that all sites share where they can, so that one read
scoreboard covers them.

Two shapes (:class:`Shape`) keep less per thread: what is the same for the
whole warp, the address of its chunk, lives in uniform registers; and the lane's part of the address moves into the low
bits of ``%off``. On architectures whose stores take a 32-bit offset from a uniform address (``Arch.offset_stores``)
that costs no instruction (so that shape comes first there), and one; elsewhere one, and four.

A record reads the clock first: it's the time at which the site's instruction could have issued. It waits for
nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from gwatch.rewrite.held import WORDS
from gwatch.rewrite.ring import (
    CANARY,
    DESCRIPTOR_DTYPE,
    HEADER_BYTES,
    HEADER_DTYPE,
    LANES,
    Keep,
    RecordKind,
    RingFormat,
)
from gwatch.rewrite.snippet import Snippet
from gwatch.sass.arch import Arch

CLOCK_REGISTERS = {"gpu": "SR_GLOBALTIMERLO", "sm": "SR_CLOCKLO", "anchor": "SR_CLOCKLO"}
# Of two pairs read in a row at most one is held up by an instruction fetch: they span no more than two lines
# of code.
_SECOND_PAIR = "CS2R.32 %dim, SR_CLOCKLO; CS2R.32 %dim+1, SR_GLOBALTIMERLO"
_LANE_BITS = LANES.bit_length() - 1


class Shape(enum.Enum):
    """What of a thread's state is in general registers: PLAIN ``%off``, ``%base`` and the address' high word; SHARED
    not the high word (``%base`` is the lane's part alone where stores take offsets); LEAN ``%off`` alone, which then
    has the lane's part in its low bits; GENERAL what PLAIN has and the header's address, which exits need: where calls
    leave no uniform register alone, or the code names all.
    """

    PLAIN = "plain"
    GENERAL = "general"
    SHARED = "shared"
    LEAN = "lean"


def shapes(fmt: RingFormat, arch: Arch, clock: str) -> tuple[Shape, ...]:
    """The shapes that records of ``fmt`` may have, the cheapest first: by lane the offset has no bits for a lane, and
    stores that take offsets save the copy of the address' high word wherever its pair doesn't stay."""
    lean = () if fmt.keep is Keep.FIRST or fmt.by_lane else (Shape.LEAN,)
    two = (Shape.SHARED, Shape.PLAIN) if arch.offset_stores else (Shape.PLAIN, Shape.SHARED)
    return (*two, *lean, *((Shape.GENERAL,) if clock == "anchor" else ()))


@dataclass(frozen=True, slots=True)
class StateRegister:
    """One register group to reserve: ``kept`` are the elements that live from site to site."""

    name: str
    width: int
    file: str
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recorder:
    """What the snippets of one trace have in common: clock, ring format, and the shape of the state."""

    arch: Arch
    fmt: RingFormat
    clock: str
    shape: Shape = Shape.PLAIN
    held: tuple[str, ...] = ()
    """Words of records that say the times of earlier sites (:mod:`gwatch.rewrite.held`); each waits in a register."""

    @property
    def head(self) -> bool:
        """Whether exits leave clock pairs in the warp's header."""
        return self.clock == "anchor"

    @property
    def offsets(self) -> bool:
        """Whether stores add a 32-bit offset to the chunk's address in uniform registers."""
        return not self.plain and self.arch.offset_stores

    @property
    def plain(self) -> bool:
        """Whether a thread keeps its whole address."""
        return self.shape in (Shape.PLAIN, Shape.GENERAL)

    def state_registers(self) -> list[StateRegister]:
        """What the snippets share."""
        plain, lean = self.plain, self.shape is Shape.LEAN
        found = [
            StateRegister("rec", record_width(self.fmt, self.clock), "R", ()),
            StateRegister("addr", 1 if self.offsets else 2, "R", (1,) if plain else ()),
            StateRegister("off", 1, "R", (0,)),
        ]
        if not lean:
            found.append(StateRegister("base", 1, "R", (0,)))
        # Stores that take offsets need no descriptor, only the prologue's do; the oldest architecture has none.
        uniform = [("chunk", 2)] if self.offsets else [("desc", 2)] if self.described else []
        if not plain and not self.offsets:
            uniform.append(("high", 1))
            if lean:
                uniform.append(("chunk", 1))
        if self.head and self.shape is Shape.GENERAL:
            found.append(StateRegister("head", 1, "R", (0,)))
        elif self.head:
            uniform.append(("head", 2 if self.offsets else 1))
        found += [StateRegister(f"held_{word}", 1, "R", (0,)) for word in self.held]
        found += [StateRegister(name, width, "UR", tuple(range(width))) for name, width in uniform]
        return found

    @property
    def described(self) -> bool:
        """Whether global memory is reached through a descriptor in a uniform pair."""
        return self.arch.descriptor_offset is not None

    def opcode(self, name: str) -> str:
        """An opcode of global memory; accesses without a descriptor say that the whole system sees them."""
        return name if self.described else f"{name}.SYS"

    def memory(self, pair: str, offset: int = 0) -> str:
        """Global memory at the address in ``pair`` plus ``offset`` bytes."""
        plus = f"+{offset:#x}" if offset else ""
        return f"desc[%desc][%{pair}.64{plus}]" if self.described else f"[%{pair}{plus}]"

    def constant(self, target: str, bank: int, offset: int, words: int = 1) -> str:
        """Lines that load ``words`` (1 or 2) of a constant bank into ``target`` and the register behind it."""
        if not self.arch.constant_moves:
            # nvdisasm prints an offset of zero as RZ for LDC.
            return f"LDC{'.64' if words == 2 else ''} {target}, c[{bank:#x}][{f'{offset:#x}' if offset else 'RZ'}]"
        name, _, element = target.partition("+")
        places = (f"{name}+{int(element or 0) + word}" for word in range(words))
        return "; ".join(
            f"MOV {place}, c[{bank:#x}][{offset + 4 * word:#x}]" for word, place in enumerate(places)
        )

    def state(self, *names: str) -> tuple[str, ...]:
        """Those of ``names`` that this shape has."""
        known = {item.name for item in self.state_registers()}
        return tuple(name for name in names if name in known)


def record_width(fmt: RingFormat, clock: str) -> int:
    """General registers reserved as ``%rec``: one record, or the two clock pairs of an exit."""
    return 4 if clock == "anchor" else fmt.record_bytes // 4


def prologue(recorder: Recorder, descriptor: int) -> Snippet:
    """Runs once per warp at the kernel's entry, where nothing is live.

    ``descriptor`` is the descriptor's offset in constant bank 3. Unarmed kernels, CTAs without a slot and warps past
    the ring's shape go on in the untouched copy of the code.
    """
    arch, fmt, head, shape = recorder.arch, recorder.fmt, recorder.head, recorder.shape
    block, grid = arch.launch_dims_offset, arch.grid_dims_offset
    fields = DESCRIPTOR_DTYPE.fields
    header = HEADER_DTYPE.fields
    assert fields is not None and header is not None

    def armed(target: str, name: str, words: int = 2) -> str:
        return recorder.constant(target, 3, descriptor + fields[name][1], words)

    if shape is Shape.LEAN or recorder.offsets:
        # The lane's part and the chunk's stay apart.
        lane = "off" if shape is Shape.LEAN else "base"
        place = f"IMAD %ring, %a+1, {fmt.chunk_bytes:#x}, %ring; MOV %{lane}, {fmt.lane_bytes:#x}"
        place += f"; IMAD %{lane}, %a, %{lane}, RZ"
        constants = f"R2UR %chunk, %ring; R2UR {'%chunk+1' if recorder.offsets else '%high'}, %ring+1"
    else:
        place = f"IMAD %base, %a+1, {fmt.chunk_bytes:#x}, %ring; IMAD %base, %a, {fmt.lane_bytes:#x}, %base"
        constants = "MOV %addr+1, %ring+1" if recorder.plain else "R2UR %high, %ring+1"
    heads = "R2UR %head, %head_at" + ("; R2UR %head+1, %head_at+1" if recorder.offsets else "")
    if shape is Shape.GENERAL:
        heads = "MOV %head, %head_at"
    store, load = recorder.opcode("STG.E.EF"), recorder.opcode("LDG.E")
    wide, pair = store.replace("EF", "EF.128"), store.replace("EF", "EF.64")
    second = f"{pair} {recorder.memory('head_at', header['clock_in2'][1])}, %dim"
    described = ""
    if arch.descriptor_offset is not None:
        described = f"{arch.constant_load}.64 %desc, c[0x0][{arch.descriptor_offset:#x}]"
    lines = f"""
        {armed("%ring", "ring")}
        LOP3.LUT %a+3, %ring, %ring+1, RZ, 0xfc, !PT
        ISETP.EQ.U32.AND %out, PT, %a+3, RZ, PT
        @%out BRA {{original}}                   // unarmed: nothing else was started
        {armed("%head_at", "headers")}
        {armed("%table", "table")}
        {armed("%limit", "cta_slots")}      // CTA slots, warps per CTA
        {recorder.constant("%dim", 0, block + 4)}
        {recorder.constant("%dim+1", 0, block)}
        {recorder.constant("%dim2", 0, grid + 4)}
        {recorder.constant("%dim2+1", 0, grid)}
        S2R %a+2, SR_TID.Z
        S2R %a+1, SR_TID.Y
        S2R %a, SR_TID.X
        S2R %b, SR_CTAID.Z
        S2R %b+1, SR_CTAID.Y
        S2R %b+3, SR_CTAID.X
        {described}
        IMAD %a+1, %a+2, %dim, %a+1
        IMAD %a, %a+1, %dim+1, %a                // linear thread
        IMAD %b+1, %b, %dim2, %b+1
        IMAD %b+3, %b+1, %dim2+1, %b+3           // linear CTA
        LOP3.LUT %a+3, %table, %table+1, RZ, 0xfc, !PT
        ISETP.NE.U32.AND %out, PT, %a+3, RZ, PT
        IMAD.WIDE.U32 %table, %b+3, 0x4, %table
        MOV %b+2, %b+3                           // the slot: the CTA's own number, or what the table says
        @%out {load} %b+2, {recorder.memory("table")}
        SHF.R.U32.HI %a+1, RZ, {_LANE_BITS:#x}, %a   // warp
        ISETP.GE.U32.AND %out, PT, %b+2, %limit, PT  // a negative slot is a large one
        ISETP.GE.U32.OR %out, PT, %a+1, %limit+1, %out
        @%out BRA {{original}}
        IMAD %a+1, %b+2, %limit+1, %a+1          // warp of the ring
        LOP3.LUT %a, %a, {LANES - 1:#x}, RZ, 0xc0, !PT
        {place}
        IMAD %head_at, %a+1, {HEADER_BYTES:#x}, %head_at
        {constants}
        {"" if shape is Shape.LEAN else "MOV %off, RZ"}
        MOV %b, {CANARY:#x}
        S2R %b+1, SR_VIRTUALSMID
        VOTE.ANY %b+2, PT, PT
        {heads if head else ""}
        {wide} {recorder.memory("head_at", header["canary"][1])}, %b
        CS2R %a, SR_CLOCKLO
        CS2R %a+2, SR_GLOBALTIMERLO
        {_SECOND_PAIR if head else ""}
        {wide} {recorder.memory("head_at")}, %a
        {second if head else ""}
    """
    high = ("addr",) if recorder.plain else ()
    return Snippet(
        lines,
        registers={"ring": 2, "head_at": 2, "table": 2, "limit": 2, "dim": 2, "dim2": 2, "a": 4, "b": 4},
        uniforms={"desc": 2} if recorder.offsets and recorder.described else {},
        predicates=("out",),
        state=recorder.state("off", "base", "high", "chunk", "desc", "head", *high),
        name="ring prologue",
    )


def hold(recorder: Recorder, word: str) -> Snippet:
    """Read the clock before a site's instruction, for ``word`` of the record of a later site."""
    name = f"held_{word}"
    return Snippet(
        f"CS2R.32 %{name}, {CLOCK_REGISTERS[recorder.clock]}", state=(name,), sets=(name,), name="held time"
    )


def record(
    recorder: Recorder,
    value: str = "none",
    pair: bool = False,
    warp_level: bool = False,
    guard: str = "",
    held: Collection[str] = (),
) -> Snippet:
    """One record before a site's instruction; ``{{site}}`` is to be given as site id + 1.

    ``value``: a :class:`~gwatch.rewrite.sitemap.MappedSite` value. ``guard``: the guard of the site's
    instruction ("P0", "!UP1"), where only lanes for which it is true record. ``warp_level``: one of the lanes
    that would record is elected, anew each time. ``held``: the words that say times held since earlier sites.
    """
    fmt = recorder.fmt
    uniform = "U" in guard
    # A vector instruction can't be guarded by a uniform predicate: copy it.
    wanted = "%run" if uniform else "%guard" if guard else "PT"
    store = "@%elected " if warp_level else f"@{wanted} " if guard else ""
    elect_free = warp_level and not guard and recorder.arch.has_elect
    wide = fmt.kind is not RecordKind.NARROW
    tag = "%rec+2" if fmt.kind is RecordKind.LONG else "%rec+1"
    full = fmt.kind is RecordKind.LONG or value not in ("none", "smid") or pair or bool(held)
    read = "CS2R" if fmt.kind is RecordKind.LONG else "CS2R.32"
    # ELECT first: a predicate takes longest to reach a guard.
    lines = ["ELECT %elected, URZ, PT"] if elect_free else []
    lines += [f"PLOP3.LUT %run, PT, PT, PT, {guard}, 0x80, 0x0"] if uniform else []
    lines.append(f"{read} %rec, {CLOCK_REGISTERS[recorder.clock]}")
    place = "%rec+3" if fmt.kind is RecordKind.LONG else "%rec+2"
    timer = value in ("ns", "ns:64")
    if timer:
        lines += _value(value, place, wanted)
    # The timer as a value may fill the pair's word already.
    if pair and value != "ns:64" and not (timer and place == "%rec+3"):
        lines.append("CS2R.32 %rec+3, SR_GLOBALTIMERLO")
    if warp_level and not elect_free:
        lines += _elect_lowest(recorder, tag, wanted)
    if not timer:
        lines += _value(value, place, wanted)
    lines += [f"MOV %rec+{2 + WORDS.index(word)}, %held_{word}" for word in held]
    lines += _address(recorder, tag)
    # Without x and y the low half of a wide record says all.
    width = 128 if wide and full else 64
    target = "[%addr.U32+%chunk]" if recorder.offsets else recorder.memory("addr")
    lines.append(f"{store}{recorder.opcode(f'STG.E.EF.{width}')} {target}, %rec")
    lines.append(store + recorder.arch.sum.format("%off", "%off", f"{fmt.step:#x}"))
    return Snippet(
        "\n".join(lines),
        predicates=(*(("elected",) if warp_level else ()), *(("run",) if uniform else ())),
        state=(
            *recorder.state("off", "base", "high", "chunk", "addr", "rec", "desc"),
            *(f"held_{word}" for word in held),
        ),
        inherit_guard=wanted == "%guard",
        name=f"{recorder.clock} record",
    )


def _address(recorder: Recorder, tag: str) -> list[str]:
    """Lines that make the record's tag and its address."""
    fmt, lean = recorder.fmt, recorder.shape is Shape.LEAN
    low = fmt.step - 1
    lines = []
    if lean:
        # %off has the lane's part of the address where the tag has the site.
        lines.append(f"LOP3.LUT {tag}, %off, {0xFFFFFFFF - low:#x}, RZ, 0xc0, !PT")
        lines.append(f"LOP3.LUT %addr, %off, {fmt.mask | low:#x}, RZ, 0xc0, !PT")
    if not recorder.plain and not recorder.offsets:
        lines.append("MOV %addr+1, %high")
    if fmt.by_lane:  # the offset's low bits aren't free
        lines.append(recorder.arch.sum.format(tag, "%off", "{site}"))
    else:
        lines.append(f"LOP3.LUT {tag}, {tag if lean else '%off'}, {{site}}, RZ, 0xfc, !PT")
    if lean:
        lines += [] if recorder.offsets else ["LOP3.LUT %addr, %addr, %chunk, RZ, 0xfc, !PT"]
    elif fmt.keep is Keep.NEWEST:
        lines.append(f"LOP3.LUT %addr, %off, {fmt.mask:#x}, %base, 0xea, !PT")
    else:
        lines.append(recorder.arch.minimum.format("%addr", "%off", f"{fmt.limit:#x}"))
        lines.append(recorder.arch.sum.format("%addr", "%addr", "%base"))
    return lines


def _elect_lowest(recorder: Recorder, mask: str, wanted: str) -> list[str]:
    """Elect the lowest lane for which ``wanted`` holds; ``mask`` is a register of the record not yet in use.

    The lane's number is in five bits of its part of the address; all above them belongs to the warp, which a
    wrapping shift does not see.
    """
    base = "%off" if recorder.shape is Shape.LEAN else "%base"
    shift = recorder.fmt.lane_bytes.bit_length() - 1
    return [
        f"VOTE.ANY {mask}, PT, {wanted}",
        recorder.arch.sum.format("%addr", f"-{mask}", "RZ"),
        f"LOP3.LUT {mask}, {mask}, %addr, RZ, 0xc0, !PT",
        f"SHF.R.U32.HI %addr, RZ, {shift:#x}, {base}",
        f"SHF.R.W.U32 {mask}, {mask}, %addr, RZ",
        f"ISETP.EQ.U32.AND %elected, PT, {mask}, 0x1, PT",
    ]


def _value(value: str, place: str, wanted: str) -> list[str]:
    """Lines that put the site's value at ``place`` (and the register after it)."""
    if value in ("none", "smid"):
        return []
    name, _, bits = value.partition(":")
    stem, number = place.split("+")
    high = f"{stem}+{int(number) + 1}"
    if name == "activemask":
        return [f"VOTE.ANY {place}, PT, {wanted}"]
    if name == "ns":
        return [f"{'CS2R' if bits == '64' else 'CS2R.32'} {place}, SR_GLOBALTIMERLO"]
    lines = [f"MOV {place}, {name}"]
    if bits == "64":
        file = "UR" if name.startswith("UR") else "R"
        lines.append(f"MOV {high}, {file}{int(name.removeprefix(file)) + 1}")
    return lines


def exit_pair(recorder: Recorder, guarded: bool) -> Snippet:
    """Before an EXIT: the low words of both clocks, twice, into the warp's header."""
    fields = HEADER_DTYPE.fields
    assert fields is not None
    out = f"{fields['clock_out'][1]:#x}"
    if recorder.offsets:
        address, target = "MOV %addr, RZ", f"[%addr.U32+%head+{out}]"
    else:
        high = "" if recorder.plain else "; MOV %addr+1, %high"
        address, target = f"MOV %addr, %head{high}", recorder.memory("addr", fields["clock_out"][1])
    return Snippet(
        f"""
        CS2R.32 %rec, SR_CLOCKLO
        CS2R.32 %rec+1, SR_GLOBALTIMERLO
        CS2R.32 %rec+2, SR_CLOCKLO
        CS2R.32 %rec+3, SR_GLOBALTIMERLO
        {address}
        {"@%guard " if guarded else ""}{recorder.opcode("STG.E.EF.128")} {target}, %rec
        """,
        state=recorder.state("addr", "rec", "desc", "head", "high"),
        inherit_guard=guarded,
        name="exit pair",
    )
