"""Snippets that the rewriting tests share: the measured record sequences and a prologue that can leave for the twin."""

from __future__ import annotations

from pathlib import Path

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.rewrite import Rewriter, Snippet

STATE = ("off", "base", "a", "d")
RECORD_A = Snippet(
    """
    CS2R.32 %t, SR_CLOCKLO
    LOP3.LUT %t+1, %off, {site}, RZ, 0xfc, !PT
    LOP3.LUT %a, %off, {mask}, %base, 0xea, !PT
    @%guard STG.E.EF.64 desc[%d][%a.64], %t
    @%guard IADD3 %off, %off, 0x100, RZ
    """,
    registers={"t": 2},
    state=STATE,
    name="record A",
)
RECORD_B = Snippet(
    """
    ELECT %p0, URZ, PT
    CS2R.32 %t, SR_CLOCKLO
    LOP3.LUT %t+1, %off, {site}, RZ, 0xfc, !PT
    LOP3.LUT %a, %off, {mask}, %base, 0xea, !PT
    @%p0 STG.E.EF.64 desc[%d][%a.64], %t
    @%p0 IADD3 %off, %off, 0x100, RZ
    """,
    registers={"t": 2},
    state=STATE,
    name="record B",
)
PROLOGUE = Snippet(
    """
    ULDC.64 %d, c[0x0][0x208]
    S2R %r0, SR_TID.X
    IMAD.MOV.U32 %off, RZ, RZ, 0x1
    ISETP.NE.AND %p0, PT, %r0, RZ, PT
    @%p0 BRA {original}
    IMAD.MOV.U32 %base, RZ, RZ, 0x1
    IMAD.MOV.U32 %a+1, RZ, RZ, 0x1
    """,
    state=STATE,
    name="prologue",
)


def recorder(cubin: Cubin, kernel: KernelDef) -> Rewriter:
    """A rewriter with the state registers of the records reserved and the prologue inserted."""
    rewriter = Rewriter(cubin, kernel)
    rewriter.reserve("off")
    rewriter.reserve("base")
    rewriter.reserve("a", 2, kept=(1,))
    rewriter.reserve("d", 2, "UR")
    rewriter.insert("entry", PROLOGUE)
    return rewriter


def named(paths: list[Path], part: str) -> Path:
    """The corpus file whose name contains ``part``."""
    (found,) = [path for path in paths if part in path.name]
    return found
