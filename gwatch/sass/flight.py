"""General registers that earlier instructions may still write or read: forward dataflow over a section.

A register is free for inserted code only when nothing in flight touches it any more. For each instruction this module
says which scoreboards cover what is in flight there, and which registers nothing will ever announce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gwatch.sass.cfg import Cfg
from gwatch.sass.control import NO_SCOREBOARD, SCOREBOARDS
from gwatch.sass.scoreboards import Waits
from gwatch.sass.uses import CodeView

# Instructions that read registers after they issued, whatever scoreboard fields the tables saw with them.
_LATE = ("LD", "ST", "RED", "ATOM", "SU", "TEX", "TLD", "TXD", "UTMA", "UBLK", "SHFL", "SYNCS")


def reads_late(mnemonic: str, kind: str) -> bool:
    """Whether an instruction may still read its registers after it issued."""
    return kind in ("variable", "async", "unknown") or mnemonic.startswith(_LATE)


@dataclass(frozen=True, slots=True)
class Flight:
    """In flight at a point, as masks of registers.

    ``boards[b]``: a wait for scoreboard b makes these free. ``written`` and ``read``: a write (a read) that no
    scoreboard announces. ``matrix``: belongs to asynchronous matrix products that nothing has waited for.
    """

    boards: tuple[int, ...]
    written: int
    read: int
    matrix: int

    @property
    def never(self) -> int:
        """Registers that no wait makes free here."""
        return self.written | self.read | self.matrix

    def covering(self, registers: int) -> int:
        """Mask of the scoreboards to wait for before ``registers`` may be written."""
        return sum(1 << board for board, mask in enumerate(self.boards) if mask & registers)


_NONE = Flight((0,) * SCOREBOARDS, 0, 0, 0)
_State = tuple[list[int], int, int, int]


class Flights:
    """:class:`Flight` before every instruction of a section (file R)."""

    def __init__(self, cfg: Cfg, view: CodeView, waits: Waits) -> None:
        self.cfg, self.view, self.waits = cfg, view, waits
        masks = view.masks("R")
        self._reads, self._writes, self._kills = masks.reads, masks.writes, masks.kills
        self._wait = waits.mask.tolist()
        self._group = waits.group.tolist()
        control = view.control
        self._write_board = control["write_scoreboard"].tolist()
        self._read_board = control["read_scoreboard"].tolist()
        self._late = self._kinds()
        self._starts = [block.start for block in cfg.blocks]
        self._known: dict[int, Flight] = {}
        self._block_in = self._solve()

    def _kinds(self) -> list[int]:
        """Per instruction 0: reads when it issues, writes after a fixed time; 1: later; 2: asynchronous."""
        mnemonics, kinds = self.view.kinds()
        code: dict[tuple[str, str], int] = {}
        out = [0] * len(self.view)
        touched = [reads | writes for reads, writes in zip(self._reads, self._writes, strict=True)]
        rows = zip(touched, mnemonics, kinds, self._write_board, self._read_board, strict=True)
        for index, (touches, mnemonic, kind, writer, reader) in enumerate(rows):
            if touches:
                item = (mnemonic, kind)
                if item not in code:
                    code[item] = 2 if kind == "async" else int(reads_late(mnemonic, kind))
                announced = writer != NO_SCOREBOARD or reader != NO_SCOREBOARD
                out[index] = code[item] or int(announced)
        return out

    def _through(
        self, start: int, stop: int, state: _State, never: list[int] | None = None, group: list[int] | None = None
    ) -> _State:
        """The state behind instructions ``start`` to ``stop``; ``never`` and ``group`` get what is before each."""
        boards, written, read, matrix = list(state[0]), *state[1:]
        flying = 0
        for found in boards:
            flying |= found
        leaves, waits, groups = self.cfg.leaves, self._wait, self._group
        for index in range(start, stop):
            if never is not None and group is not None:
                never[index], group[index] = written | read | matrix, matrix
            mask = waits[index]
            if mask:
                boards = [0 if mask >> board & 1 else found for board, found in enumerate(boards)]
            if groups[index]:
                matrix = 0
            if leaves[index]:
                # A function is entered and left with nothing in flight that it touches.
                continue
            reads, writes, kills = self._reads[index], self._writes[index], self._kills[index]
            late = self._late[index]
            if late == 2:
                matrix |= reads | writes
                continue
            # A compiler reads a result only when it is there and overwrites a register only when nobody needs it.
            if written:
                written &= ~(reads | kills)
            if read:
                read &= ~kills
            if kills & flying:
                boards = [found & ~kills for found in boards]
                flying = 0
                for found in boards:
                    flying |= found
            if late:
                writer, reader = self._write_board[index], self._read_board[index]
                if writer != NO_SCOREBOARD:
                    boards[writer] |= writes
                    flying |= writes
                else:
                    written |= writes
                board = reader if reader != NO_SCOREBOARD else writer
                if board != NO_SCOREBOARD:
                    boards[board] |= reads
                    flying |= reads
                else:
                    read |= reads
        return boards, written, read, matrix

    def _solve(self) -> list[Flight | None]:
        blocks = self.cfg.blocks
        number_of = {block.start: number for number, block in enumerate(blocks)}
        found: list[Flight | None] = [None] * len(blocks)
        work = sorted({number_of[entry] for entry in (0, *self.cfg.entries)}, reverse=True)
        for number in work:
            found[number] = _NONE
        while work:
            number = work.pop()
            block, start = blocks[number], found[number]
            assert start is not None
            state: _State = (list(start.boards), start.written, start.read, start.matrix)
            state = self._through(block.start, block.end, state)
            for item in self.cfg.successors(block.end - 1):
                following = number_of[item]
                old = found[following]
                new = _merge(old, state)
                if new != old:
                    found[following] = new
                    work.append(following)
        return found

    def at(self, index: int) -> Flight:
        """What is in flight right before instruction ``index`` (its own waits not yet made)."""
        if index not in self._known:
            number = int(np.searchsorted(self._starts, index, side="right")) - 1
            start = self._block_in[number] or _NONE
            state: _State = (list(start.boards), start.written, start.read, start.matrix)
            state = self._through(self.cfg.blocks[number].start, index, state)
            self._known[index] = Flight(tuple(state[0]), *state[1:])
        return self._known[index]

    def masks(self) -> tuple[list[int], list[int]]:
        """Per instruction, right before it: :attr:`Flight.never`, and registers of asynchronous matrix products in
        flight.
        """
        never, matrix = [0] * len(self.view), [0] * len(self.view)
        for block, start in zip(self.cfg.blocks, self._block_in, strict=True):
            found = start or _NONE
            state: _State = (list(found.boards), found.written, found.read, found.matrix)
            self._through(block.start, block.end, state, never, matrix)
        return never, matrix


def _merge(old: Flight | None, state: _State) -> Flight:
    boards, written, read, matrix = state
    if old is None:
        return Flight(tuple(boards), written, read, matrix)
    return Flight(
        tuple(a | b for a, b in zip(old.boards, boards, strict=True)),
        old.written | written,
        old.read | read,
        old.matrix | matrix,
    )
