"""Where all living lanes of a warp surely run together: a forward dataflow over the blocks of a section.

A warp starts whole. A branch parts it unless all that decides it is the same in every lane; so beside "whole" the
analysis knows the registers and predicates that are: what a pure instruction of a whole warp makes out of such ones,
out of uniform registers and out of constants. A parted warp is whole again

* behind a BSYNC whose BSSY a whole warp ran, if nothing between the two lets the lanes that wait go on without the
  others. Measured on the H200: a YIELD does; so may all else that waits;
* behind an instruction that PTX has in the form ``.sync.aligned`` alone: it's undefined for a part of a warp, which may
  come by it only where its guard is false. (WARPSYNC isn't one: lanes may meet at two of them.)

An mbarrier's phase is the same for all lanes of one instruction that ask for it with the same address and parity: ptxas
writes no BSSY around a wait for one barrier, and does around one whose address differs by lane; on the H200 none of
4,100 million answers was divided while 1,584 million phases completed (``tools/gpu_check.py --modules groups``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from gwatch.sass.cfg import FLOW_MNEMONICS, Cfg, Flow
from gwatch.sass.uses import ALWAYS, CodeView, Masks, WordFacts

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
_WAITS = frozenset({
    "ACQBULK", "BAR", "BSYNC", "ENDCOLLECTIVE", "MEMBAR", "NANOSLEEP", "UCGABAR_WAIT", "WARPSYNC", "YIELD",
})  # fmt: skip
_ASKS = "SYNCS.PHASECHK"
# What changes the lanes that a barrier register names.
_NAMES = frozenset({"BMOV", "BREAK"})
_GUIDES = FLOW_MNEMONICS | _WAITS | _NAMES | {"SYNCS"}
_PASSED = (Flow.NEXT, Flow.REFERENCE, Flow.BRANCH, Flow.EXIT)
_CONDITION = re.compile(r"@|\bU?P[0-9T]")
_REGION = 4000


class _State(NamedTuple):
    """What holds on every path: masks of the registers that are alike in all living lanes, of the barrier registers at
    which they surely meet, and of those that name them all, while they are together; ``complete``: no lane has left
    before the others."""

    whole: bool = False
    complete: bool = False
    general: int = 0
    predicates: int = 0
    barriers: int = 0
    named: int = 0

    def meet(self, other: _State) -> _State:
        return _State(
            self.whole and other.whole,
            self.complete and other.complete,
            self.general & other.general,
            self.predicates & other.predicates,
            self.barriers & other.barriers,
            self.named & other.named,
        )


def may_wait(facts: WordFacts) -> bool:
    """Whether lanes may stay at such an instruction while those that its predicates leave out go on, and groups of a
    warp that wait there may join."""
    return facts.mnemonic in _WAITS or facts.opcode.startswith(_ASKS)


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
        flow = self.cfg.flow
        # Lanes that WARPSYNC.COLLECTIVE gathers go their own ways again where it says.
        scattered = {int(target) for target in flow.target[flow.kind == Flow.SPLIT] if target >= 0}
        work = [numbers[entry] for entry in {*self.cfg.entries, *scattered}]
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
        whole, complete, general, predicates, barriers, named = state
        flow, files = self.cfg.flow, (self._general, self._predicates)
        for index in range(start, end):
            mnemonic = self._mnemonics[index]
            alike = not (files[0].reads[index] & ~general or files[1].reads[index] & ~predicates)
            if files[0].writes[index] or files[1].writes[index]:
                same = whole and self._same(index, mnemonic, alike, complete)
                general = _written(general, files[0], index, same)
                predicates = _written(predicates, files[1], index, same)
            if mnemonic in _ALIGNED:
                whole = whole or self.view.facts(index).guard == ALWAYS
            if mnemonic not in _GUIDES:
                continue
            kind = flow.kind[index]
            if kind == Flow.SPLIT or kind == Flow.CALL_OUT or self._scatters(index, mnemonic):
                whole, complete, general, predicates, barriers, named = _State()
            elif kind == Flow.EXIT:
                complete &= alike
            elif mnemonic == "BSSY":
                bit = 1 << int(flow.barrier[index])
                all_run = whole and not _CONDITION.search(self.view.text(index))
                named = named | bit if all_run else named & ~bit
                # What the modifiers of later architectures promise (.RECONVERGENT, .RELIABLE) wasn't measured.
                sure = all_run and self.view.facts(index).opcode == "BSSY" and self._meets(index)
                barriers = barriers | bit if sure else barriers & ~bit
            elif mnemonic in _NAMES:
                named = 0
            else:
                if mnemonic == "BSYNC":
                    bit = 1 << int(flow.barrier[index])
                    whole = bool(barriers & bit) or (whole and bool(named & bit))
                    barriers, named = barriers & ~bit, named & ~bit
                if not alike and (mnemonic != "SYNCS" or may_wait(self.view.facts(index))):
                    whole = complete = False
                if not whole:
                    named = 0
        return _State(whole, complete, general, predicates, barriers, named)

    def _scatters(self, index: int, mnemonic: str) -> bool:
        """Whether nobody knows who goes on together behind the instruction at ``index``."""
        return mnemonic == "ENDCOLLECTIVE" or (
            mnemonic == "WARPSYNC" and "EXCLUSIVE" in self.view.facts(index).opcode
        )

    def _same(self, index: int, mnemonic: str, alike: bool, complete: bool) -> bool:
        """Whether the lanes of a whole warp get the same results, ``alike``: from operands that are the same."""
        if mnemonic in ("VOTE", "SHFL"):
            told = _TELLS_ALL.match(self.view.text(index))
            return told is not None and (complete or not told[1])
        if not alike:
            return False
        if mnemonic == "MOV" and self.view.facts(index).text.count(",") > 1:
            return False  # its third operand says which lanes of four take part
        return mnemonic in _PURE or (mnemonic in _BY_TEXT and bool(_ALIKE.match(self.view.text(index))))

    def _meets(self, index: int) -> bool:
        """Whether the lanes that run the BSSY at ``index`` surely meet at one BSYNC, but for those that end."""
        known = self._meeting.get(index)
        if known is None:
            known = self._meeting[index] = self._closes(index)
        return known

    def _closes(self, index: int) -> bool:
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
            mnemonic = self._mnemonics[at]
            if mnemonic in _NAMES or kinds[at] not in _PASSED:
                return False
            # What waits may end a wait at a BSYNC without the others; other regions' BSYNCs don't.
            if mnemonic in _GUIDES and mnemonic != "BSYNC" and may_wait(self.view.facts(at)):
                return False
            following = [item for item in self.cfg.successors(at) if item not in seen]
            work += following
            seen.update(following)
            if len(seen) > _REGION:
                return False
        if len(closers) != 1:
            return False
        (closer,) = closers
        return bool(self.cfg.flow.target[index] in (closer, closer + 1))


def _written(alike: int, masks: Masks, index: int, same: bool) -> int:
    """The registers that are ``alike`` behind an instruction that writes the ``same`` into all lanes, or doesn't."""
    writes = masks.writes[index]
    return alike & ~writes | (masks.kills[index] | writes & alike if same else 0)
