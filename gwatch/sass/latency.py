"""Minimum issue distances between dependent instructions: one text table per architecture under ``isa/``.

A distance is counted in issue cycles: the sum of the stall fields from the producer up to (not including) the
consumer. The table is the smallest distance that compilers leave between a producer and the first instruction
that needs its result, per (producer class, register file, consumer class, operand role), with the number of
times that smallest distance was seen; compiler output is correct, so any distance seen is safe for that pair.
The class of an instruction is its mnemonic plus the modifiers that change its result's timing
(:func:`latency_class`).

``floor`` and ``given`` lines are facts stated by hand, each with its source: a pair is never taken below a floor, and
needs no more than what is given. ``limit`` lines are for checking foreign code: pairs pooled by the unit that executes
them (:func:`unit_class`), so that one rare pair of opcodes doesn't stand for a law of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from statistics import median_high

from gwatch._resources import resource
from gwatch.errors import ToolError, UnsupportedError

UNSEEN = 15
UNKNOWN = 64
TRUST = 6
OFTEN = 50
MARGIN = 2
ANY = "*"
OVERWRITE = "overwrite"
_NEVER = (1, UNSEEN, 0)
_SPLIT = {"IMAD": ("WIDE", "HI"), "UIMAD": ("WIDE", "HI"), "LEA": ("HI",)}


_UNITS = {
    "ALU": "IADD3 IADD LOP3 LOP SHF LEA LEA.HI ISETP SEL PRMT IABS IMNMX VIMNMX VIMNMX3 VIADDMNMX VHMNMX FSEL "
    "FSETP FSET FMNMX PLOP3 SGXT BMSK I2FP F2FP I2IP F2IP MOV P2R R2P VOTE VABSDIFF",
    "FMA": "FFMA FADD FMUL IMAD VIADD FSWZADD IDP IDP4A",
    "WIDE": "IMAD.WIDE IMAD.HI",
    "HALF": "HFMA2 HADD2 HMUL2 HMNMX2 HSETP2 HSET2",
    "DOUBLE": "DADD DMUL DFMA DSETP DMNMX",
    "UNIFORM": "UIADD3 ULOP3 USHF UIMAD UIMAD.WIDE UIMAD.HI USEL UISETP UPRMT ULEA ULEA.HI UPLOP3 UP2UR UR2UP UBMSK "
    "USGXT UIMNMX UVIMNMX",
    "MEMORY": "LDG LD STG ST LDS STS LDL STL ATOM ATOMG ATOMS RED REDG LDSM STSM LDGSTS SHFL QSPC CCTL",
    "CONVERT": "MUFU I2F F2I F2F POPC FLO BREV FRND",
    "BRANCH": "BRA EXIT BSYNC BREAK CALL RET BSSY WARPSYNC BRX BRXU YIELD BAR NANOSLEEP KILL",
    "TMA": "UTMALDG UTMASTG UTMAPF UTMAREDG UBLKCP UBLKRED UBLKPF",
    "WARPGROUP": "HGMMA QGMMA IGMMA BGMMA",
    "MATRIX": "HMMA IMMA DMMA BMMA QMMA",
    "SPECIAL": "S2R S2UR CS2R",
}
UNITS = {name: unit for unit, names in _UNITS.items() for name in names.split()}
"""Which classes run alike, as far as issue distances between them show; any other class is a unit of its own."""


def unit_class(name: str) -> str:
    """The unit of a latency class: ``LEA.HI`` -> ``ALU``."""
    return UNITS.get(name, name)


_HIGH = {"IMAD.WIDE": 1, "IMAD.HI": 0}


def producer_unit(name: str, offset: int) -> str:
    """The unit that makes register ``offset`` of a result of class ``name``: the high half of a wide product is there
    later than the low one."""
    return "HIGH" if _HIGH.get(name) == offset else unit_class(name)


def latency_class(opcode: str) -> str:
    """The latency class of an opcode with its modifiers: ``IMAD.WIDE.U32`` -> ``IMAD.WIDE``, ``LOP3.LUT`` ->
    ``LOP3``."""
    parts = opcode.split(".")
    kept = [part for part in parts[1:] if part in _SPLIT.get(parts[0], ())]
    return ".".join([parts[0], *kept])


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Distances of one architecture.

    ``pairs[(producer, file, consumer, role)] = (minimum, trusted, seen)``: the smallest distance seen, the
    smallest at or below which at least :data:`TRUST` pairs were seen, and how many pairs there were.
    ``overwrites[(first, file, second)]``: the same for two writes of one register; ``floors`` and
    ``given``: cycles, with ``*`` for any class or role; ``signal``: the smallest distance from an instruction
    that takes a scoreboard to one that waits for it. ``limits[(producer unit, file, consumer unit, role)]``: the
    smallest distance that compilers ever leave, for units whose smallest distance was seen in many places.
    """

    arch: str
    pairs: dict[tuple[str, str, str, str], tuple[int, int, int]]
    overwrites: dict[tuple[str, str, str], tuple[int, int, int]]
    floors: dict[tuple[str, str, str, str], int]
    given: dict[tuple[str, str, str, str], int]
    signal: int
    limits: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    _settled: dict[tuple[str, str], int] = field(default_factory=dict, repr=False, compare=False)
    _slowest: dict[tuple[str, str], int] = field(default_factory=dict, repr=False, compare=False)

    def distance(self, producer: str, file: str, consumer: str, role: str) -> int:
        """Issue cycles that code made from nothing must leave.

        A pair seen too rarely waits 15, or longer behind a producer that is slow for all its consumers; a producer
        the table doesn't know at all waits 64.
        """
        pair = (producer, file, ANY if role == "guard" else consumer, role)
        _, cycles, seen = self.pairs.get(pair, _NEVER)
        known = cycles if seen >= TRUST else self.settled(producer, file)
        given = _stated(self.given, *pair)
        return max(known if given is None else min(known, given), self._floor(*pair))

    def minimum(self, producer: str, file: str, consumer: str, role: str) -> int:
        """The smallest distance ever seen: a smaller one is an error. 1 for a pair never seen."""
        return self.pairs.get((producer, file, ANY if role == "guard" else consumer, role), _NEVER)[0]

    def limit(self, producer: str, file: str, consumer: str, role: str, offset: int = 0) -> int:
        """The distance that compiled code never undercuts, for register ``offset`` of the result; 1 where that isn't
        known."""
        reader = ANY if role == "guard" else unit_class(consumer)
        return self.limits.get((producer_unit(producer, offset), file, reader, role), 1)

    def slowest(self, producer: str, file: str, offset: int = 0) -> int:
        """The longest limit of a producer: past it nothing can be too early."""
        key = (producer_unit(producer, offset), file)
        if key not in self._slowest:
            self._slowest[key] = max((cycles for pair, cycles in self.limits.items() if pair[:2] == key), default=1)
        return self._slowest[key]

    def overwrite(self, first: str, file: str, second: str) -> int:
        """Issue cycles from a write to a later write of the same register (code made from nothing)."""
        _, cycles, seen = self.overwrites.get((first, file, second), _NEVER)
        if seen >= TRUST:
            # A pair seen only far apart tells nothing: once a result is there, it may be overwritten.
            return min(cycles, self.settled(first, file))
        return 1 if first == second else self.settled(first, file)

    def settled(self, producer: str, file: str) -> int:
        """Issue cycles after which a result of ``producer`` in ``file`` is there for any consumer."""
        key = (producer, file)
        if key not in self._settled:
            mine = [(minimum, seen) for pair, (minimum, _, seen) in self.pairs.items() if pair[:2] == key]
            # The middle pair: a slow unit is slow for all its consumers, while a single slow pair is a habit of
            # some template. A rare pair may only look slow.
            often = [minimum for minimum, seen in mine if seen >= OFTEN]
            usual = often or [minimum for minimum, seen in mine if seen >= TRUST]
            known = max(UNSEEN, median_high(usual) + MARGIN) if usual else UNKNOWN
            self._settled[key] = max(known, self._floor(producer, file, ANY, ANY))
        return self._settled[key]

    def _floor(self, producer: str, file: str, consumer: str, role: str) -> int:
        found = _stated(self.floors, producer, file, consumer, role)
        return 1 if found is None else found


def _stated(
    facts: dict[tuple[str, str, str, str], int], producer: str, file: str, consumer: str, role: str
) -> int | None:
    """The most specific fact about a pair."""
    for who, whom in ((producer, consumer), (producer, ANY), (ANY, consumer), (ANY, ANY)):
        for what in (role, ANY):
            if (who, file, whom, what) in facts:
                return facts[who, file, whom, what]
    return None


def parse_table(text: str, arch: str) -> LatencyTable:
    """Read a table in the form that ``tools/learn_latency.py`` writes (see ``isa/README.md``)."""
    pairs: dict[tuple[str, str, str, str], tuple[int, int, int]] = {}
    overwrites: dict[tuple[str, str, str], tuple[int, int, int]] = {}
    floors: dict[tuple[str, str, str, str], int] = {}
    given: dict[tuple[str, str, str, str], int] = {}
    limits: dict[tuple[str, str, str, str], int] = {}
    signal = 2
    for line in text.splitlines():
        word = line.split("#", 1)[0].split()
        if not word:
            continue
        if word[0] == "pair":
            pairs[word[1], word[2], word[3], word[4]] = (int(word[5]), int(word[6]), int(word[7]))
        elif word[0] == "overwrite":
            overwrites[word[1], word[2], word[3]] = (int(word[4]), int(word[5]), int(word[6]))
        elif word[0] == "floor":
            floors[word[1], word[2], word[3], word[4]] = int(word[5])
        elif word[0] == "given":
            given[word[1], word[2], word[3], word[4]] = int(word[5])
        elif word[0] == "limit":
            limits[word[1], word[2], word[3], word[4]] = int(word[5])
        elif word[0] == "signal":
            signal = int(word[1])
    return LatencyTable(arch, pairs, overwrites, floors, given, signal, limits)


@cache
def latency_for(table: str) -> LatencyTable:
    """The latency table called ``table`` (``Arch.latency``, e.g. "sm_90").

    Raises UnsupportedError ``[latency-unknown]`` when none has been learned for it.
    """
    try:
        text = resource("isa", f"latency_{table}.txt").read_text(encoding="utf-8")
    except ToolError as error:
        raise UnsupportedError(
            "latency-unknown",
            f"no latency table for {table}",
            "tools/learn_latency.py makes one from compiled kernels",
        ) from error
    return parse_table(text, table)
