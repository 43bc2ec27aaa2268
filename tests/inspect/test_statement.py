"""What an instruction's text says that it writes and reads."""

from __future__ import annotations

import pytest

from gwatch.inspect.statement import bit, statement


def bits(names: str) -> int:
    out = 0
    for name in names.split():
        file = name.rstrip("0123456789")
        out |= bit((file, int(name[len(file) :])))
    return out


@pytest.mark.parametrize(
    ("text", "writes", "reads"),
    [
        ("IMAD.WIDE R2, R7.reuse, 0x4, R8", "R2 R3", "R7 R8 R8 R9"),
        ("IADD3 R4, P0, R2, 0x10, RZ", "R4 P0", "R2"),
        ("IADD3 R0, PT, PT, R11, R0, RZ", "R0", "R11 R0"),
        ("@!P1 LDG.E.128 R4, desc[UR6][R2.64+0x10]", "R4 R5 R6 R7", "P1 UR6 UR7 R2 R3"),
        ("STG.E desc[UR6][R4.64], R3", "", "UR6 UR7 R4 R5 R3"),
        ("ISETP.GE.AND P0, PT, R0, UR8, PT", "P0", "R0 UR8"),
        ("PLOP3.LUT P0, P3, P1, P2, PT, 0x80, 0x0", "P0 P3", "P1 P2"),
        # A predicate in front of the register that is written.
        ("SHFL.UP P0, R8, R7, 0x1, RZ", "P0 R8", "R7"),
        ("@!P0 ATOMG.E.ADD.STRONG.GPU PT, R9, desc[UR4][R4.64], R7", "R9", "P0 UR4 UR5 R4 R5 R7"),
        ("LOP3.LUT P0, R4, R5, 0x1, RZ, 0xc0, !PT", "P0 R4", "R5"),
        ("MATCH.ALL PT, R5, R4", "R5", "R4"),
        ("FCHK P0, R2, R3", "P0", "R2 R3"),
        ("VOTE.ANY R6, PT, PT", "R6", ""),
        ("VOTE.ANY P1, P0", "P1", "P0"),
        ("R2P PR, R6, 0x7f", "P0 P1 P2 P3 P4 P5 P6", "R6"),
        ("P2R R6, PR, RZ, 0x40", "R6", "P0 P1 P2 P3 P4 P5 P6"),
        ("CS2R R4, SRZ", "R4 R5", ""),
        ("IADD.64 R4, R4, 0x40", "R4 R5", "R4 R5"),
        ("LDC.64 R2, c[0x0][0x210]", "R2 R3", ""),
    ],
)
def test_written_and_read(text: str, writes: str, reads: str) -> None:
    found = statement(text)
    assert found.writes == bits(writes)
    # Registers beside those that are read may be taken for a pair's other half; none may be missing.
    assert found.reads & bits(reads) == bits(reads)
    if "[" not in text and "WIDE" not in text and ".64" not in text:
        assert found.reads == bits(reads)
