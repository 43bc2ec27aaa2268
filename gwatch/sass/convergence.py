"""Where all living lanes of a warp surely run together: a forward dataflow over the blocks of a section.

A warp starts whole. A branch parts it unless all that decides it is the same in every lane; so beside "whole" the
analysis knows the registers and predicates that are: what a pure instruction of a whole warp makes out of such ones,
out of uniform registers and out of constants. A parted warp is whole again

* behind a BSYNC whose BSSY a whole warp ran, if nothing between the two lets the lanes that wait go on without the
  others. Measured on the H200: a YIELD does;
* behind an instruction that PTX has in the form ``.sync.aligned`` alone: it's undefined for a part of a warp.
  (WARPSYNC isn't one: lanes may meet at two of them.)

An mbarrier's phase is the same for all lanes of one instruction that ask for it with the same address and parity: ptxas
writes no BSSY around a wait for one barrier, and does around one whose address differs by lane; on the H200 none of
4,100 million answers was divided while 1,584 million phases completed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from gwatch.sass.cfg import FLOW_MNEMONICS, Cfg, Flow
from gwatch.sass.uses import CodeView, Masks

# Results depend on operands alone.
_PURE = frozenset({
    "BMSK", "BREV", "CLMAD", "DADD", "DFMA", "DMUL", "DSETP", "F2F", "F2FP", "F2I", "F2IP", "FADD", "FADD2", "FCHK",
    "FFMA", "FFMA2", "FHADD", "FHFMA", "FLO", "FMNMX", "FMNMX3", "FMUL", "FMUL2", "FRND", "FSEL", "FSET", "FSETP",
    "HADD2", "HFMA2", "HMNMX2", "HMUL2", "HSET2", "HSETP2", "I2F", "I2FP", "I2I", "I2IP", "IABS", "IADD", "IADD3",
    "IDP", "IMAD", "IMNMX", "IMUL", "ISETP", "LDC", "LEA", "LOP3", "MOV", "MUFU", "P2R", "PLOP3", "POPC", "PRMT",
    "R2P", "SEL", "SGXT", "SHF", "VABSDIFF", "VABSDIFF4", "VHMNMX", "VIADD", "VIADDMNMX", "VIMNMX", "VIMNMX3",
})  # fmt: skip
# So do these, by their text: registers of the CTA, zeros, the phase of an mbarrier.
_ALIKE = re.compile(r"(?:@\S+ )?(?:S2R R\d+, SR_(?:CTAID\.|CgaCtaId)|CS2R\S* R\d+, SRZ|SYNCS\.PHASECHK\.)")
_BY_TEXT = frozenset({"S2R", "CS2R", "SYNCS"})
# These tell all lanes the same whatever the operands: votes; and where lane 0 lives, what it has.
_TELLS_ALL = re.compile(r"VOTE\.|(SHFL)\.IDX PT, R\d+, R\d+, RZ, 0x1f$")
_ALIGNED = frozenset({
    "BGMMA", "BMMA", "DMMA", "HGMMA", "HMMA", "IGMMA", "IMMA", "LDSM", "LDTM", "MOVM", "OMMA", "QGMMA", "QMMA", "STSM",
    "STTM", "USETMAXREG", "WARPGROUP",
})  # fmt: skip
# Where lanes may stay while those that a predicate leaves out go on.
_WAITS = frozenset({"BAR", "BSYNC", "NANOSLEEP", "WARPSYNC", "YIELD"})
# What may end a wait at a BSYNC without the others, or make its barrier register name other lanes.
_DISTURBS = frozenset({"BAR", "BMOV", "BREAK", "ENDCOLLECTIVE", "NANOSLEEP", "WARPSYNC", "YIELD"})
_GUIDES = FLOW_MNEMONICS | _WAITS
_PASSED = (Flow.NEXT, Flow.REFERENCE, Flow.BRANCH, Flow.EXIT)
_CONDITION = re.compile(r"@|\bU?P[0-9T]")
_REGION = 4000


class _State(NamedTuple):
    """What holds on every path: masks of the registers that are alike in all living lanes, and of the barrier registers
    that name them all; ``complete``: no lane has left before the others."""

    whole: bool = False
    complete: bool = False
    general: int = 0
    predicates: int = 0
    barriers: int = 0

    def meet(self, other: _State) -> _State:
        return _State(
            self.whole and other.whole,
            self.complete and other.complete,
            self.general & other.general,
            self.predicates & other.predicates,
            self.barriers & other.barriers,
        )


class Convergence:
    """Per instruction: whether all living lanes of the warp come to it together, whenever one does.

    The section's first instruction is a kernel's, where warps begin; at every other entry of ``cfg`` nothing is known,
    nor is anything in code with words that the tables can't read, or an indirect branch whose targets nobody lists.
    """

    def __init__(self, cfg: Cfg, view: CodeView) -> None:
        self.cfg, self.view = cfg, view
        self._general, self._predicates = view.masks("R"), view.masks("P")
        self._mnemonics = view.kinds()[0]
        self._starts = [block.start for block in cfg.blocks]
        self._meeting: dict[int, bool] = {}
        self._before: list[_State | None] = [None] * len(cfg.blocks)
        unnamed = cfg.flow.barrier < 0
        told = not any(
            unnamed[index] for index, name in enumerate(self._mnemonics) if name in ("BSSY", "BSYNC")
        )
        if told and not cfg.indirect and all(view.facts(index).known for index in view.incomplete()):
            self._solve()

    def together(self, index: int) -> bool:
        """Whether every lane that lives is there when the warp comes to instruction ``index``."""
        number = bisect_right(self._starts, index) - 1
        state = self._before[number]
        return state is not None and self._through(self._starts[number], index, state).whole

    def _solve(self) -> None:
        numbers = {start: number for number, start in enumerate(self._starts)}
        work = [numbers[entry] for entry in self.cfg.entries]
        for number in work:
            self._before[number] = _State(whole=number == 0, complete=number == 0)
        while work:
            number = work.pop()
            block, before = self.cfg.blocks[number], self._before[number]
            assert before is not None
            state = self._through(block.start, block.end, before)
            for following in self.cfg.successors(block.end - 1):
                item = numbers[following]
                known = self._before[item]
                new = state if known is None else known.meet(state)
                if new != known:
                    self._before[item] = new
                    work.append(item)

    def _through(self, start: int, end: int, state: _State) -> _State:
        """What holds before instruction ``end`` where ``state`` holds before ``start``, of the same block."""
        whole, complete, general, predicates, barriers = state
        flow, files = self.cfg.flow, (self._general, self._predicates)
        for index in range(start, end):
            mnemonic = self._mnemonics[index]
            alike = not (files[0].reads[index] & ~general or files[1].reads[index] & ~predicates)
            if files[0].writes[index] or files[1].writes[index]:
                same = whole and self._same(index, mnemonic, alike, complete)
                general = _written(general, files[0], index, same)
                predicates = _written(predicates, files[1], index, same)
            if mnemonic in _ALIGNED:
                whole = True
            if mnemonic not in _GUIDES:
                continue
            kind = flow.kind[index]
            if kind == Flow.SPLIT or kind == Flow.CALL_OUT:
                whole, complete, general, predicates, barriers = _State()
            elif kind == Flow.EXIT:
                complete &= alike
            elif mnemonic == "BSSY":
                bit = 1 << int(flow.barrier[index])
                barriers = barriers | bit if whole and self._names_all(index) else barriers & ~bit
            else:
                if mnemonic == "BSYNC":
                    bit = 1 << int(flow.barrier[index])
                    whole, barriers = whole or bool(barriers & bit), barriers & ~bit
                if not alike:
                    whole = complete = False
        return _State(whole, complete, general, predicates, barriers)

    def _same(self, index: int, mnemonic: str, alike: bool, complete: bool) -> bool:
        """Whether the lanes of a whole warp get the same results, ``alike``: from operands that are the same."""
        if mnemonic in ("VOTE", "SHFL"):
            told = _TELLS_ALL.match(self.view.text(index))
            return told is not None and (complete or not told[1])
        if not alike:
            return False
        return mnemonic in _PURE or (mnemonic in _BY_TEXT and bool(_ALIKE.match(self.view.text(index))))

    def _names_all(self, index: int) -> bool:
        """Whether the lanes that run the BSSY at ``index`` surely meet at one BSYNC, but for those that end."""
        known = self._meeting.get(index)
        if known is None:
            known = self._meeting[index] = not _CONDITION.search(self.view.text(index)) and self._meets(index)
        return known

    def _meets(self, index: int) -> bool:
        barriers, kinds = self.cfg.flow.barrier, self.cfg.flow.kind
        barrier = barriers[index]
        work, seen, closers = [index + 1], {index + 1}, set[int]()
        while work:
            at = work.pop()
            if barriers[at] == barrier:
                if self._mnemonics[at] != "BSYNC" or _CONDITION.search(self.view.text(at)):
                    return False
                closers.add(at)
                continue
            if self._mnemonics[at] in _DISTURBS or kinds[at] not in _PASSED:
                return False
            following = [item for item in self.cfg.successors(at) if item not in seen]
            work += following
            seen.update(following)
            if len(seen) > _REGION:
                return False
        return len(closers) == 1


def _written(alike: int, masks: Masks, index: int, same: bool) -> int:
    """The registers that are ``alike`` behind an instruction that writes the ``same`` into all lanes, or doesn't."""
    writes = masks.writes[index]
    return alike & ~writes | (masks.kills[index] | writes & alike if same else 0)
