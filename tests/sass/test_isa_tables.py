"""Every table against its golden words: text, reads, writes, and the way back; targets and control words."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from gwatch._resources import resource
from gwatch.errors import EncodeError, UnsupportedError
from gwatch.sass.arch import ARCHES
from gwatch.sass.control import Control
from gwatch.sass.isa import Isa, isa_for, tree
from gwatch.sass.isa.lex import pieces
from gwatch.sass.isa.table import Table, load

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
MEMORY = ("LD", "LDG", "LDGSTS", "LDL", "LDS", "ST", "STG", "STL", "STS", "ATOM", "ATOMG", "ATOMS", "RED", "REDG")
TABLES = {"sm_75": "sm_75", "sm_80": "sm_89", "sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}
WIDTHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
"""The tables in which the width of every address in compilers' forms was proved."""


def rows(table: str) -> list[tuple[int, str, str, str]]:
    """(word, text, reads, writes) of a golden file."""
    out = []
    for line in (GOLDEN / f"isa_{table.replace('_', '')}.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, text, reads, writes = (part.strip(" ") for part in line.split(" ;"))
            out.append((int(word, 16), text, reads, writes))
    return out


@pytest.mark.parametrize("table", TABLES)
def test_golden_words_read_as_nvdisasm_reads_them(table: str) -> None:
    isa = isa_for(TABLES[table])
    golden = rows(table)
    assert len(golden) > 1000
    for word, text, reads, writes in golden:
        decoded = isa.decode(word)
        assert decoded.text == text
        assert decoded.effects.complete == (reads != "?"), text
        if reads != "?":
            assert " ".join(map(str, decoded.effects.reads)) == reads, text
            assert " ".join(map(str, decoded.effects.writes)) == writes, text


@pytest.mark.parametrize("table", TABLES)
def test_canonical_text_of_golden_words_gives_the_word_or_a_refusal(table: str) -> None:
    isa = isa_for(TABLES[table])
    golden = rows(table)
    exact = 0
    for word, text, _, _ in golden:
        decoded = isa.decode(word)
        try:
            made = isa.encode(decoded.canonical, Control.from_word(word))
        except EncodeError:
            assert not isa.seen_in_compiler_code(word), text
            continue
        assert isa.decode(made).text == text
        assert made == word or not isa.in_compiler_code(word), text
        exact += made == word
    assert exact > 0.6 * len(golden)


@pytest.mark.parametrize("table", TABLES)
def test_every_target_of_a_table_is_an_architecture_of_it(table: str) -> None:
    header = load(table).header
    members = {a.name for a in ARCHES.values() if a.table == table}
    assert set(header["targets"]) <= members
    whole = load(table)
    for number in whole.numbers():
        key = whole.key(number)
        assert key is not None
        assert set(key.targets) < set(header["targets"]), f"{number:04x}"
    for target in header["targets"]:
        assert load(table, target).numbers()


@pytest.mark.parametrize("arch", list(TABLES.values()))
def test_legal_control_words_are_known(arch: str) -> None:
    isa = isa_for(arch)
    for text in ("EXIT", "NOP", "BRA 0x100"):
        word = isa.encode(text)
        key = isa.table.key(word & 0xFFF | (word >> 91 & 1) << 12)
        assert key is not None
        assert "control" in key.extra, text
        assert key.allows(Control(stall=1).to_bits())
        assert not key.allows(16 << 105 | 63 << 110), "a yield bit without a stall"


def descriptor_isa() -> Isa:
    return isa_for("sm_80")


@pytest.mark.parametrize(("word", "text"), [
    (0x000FE2200C1E8B081F61980608FC7981, "LDG.E.64.CONSTANT R252, [R8.64+UR6+0x1f6198], !PT"),
    (0x000FE2000C1E8B081F61980608FC7981, "LDG.E.64.CONSTANT R252, [R8.64+UR6+0x1f6198], !PT"),
    (0x000FE2200C1E8B001F61980608FC7981, "LDG.E.64.CONSTANT R252, [R8.64+UR6+0x1f6198]"),
    (0x000FE2200C5E0B280000100608047981, "LDG.E.NA.LTC128B.64 R4, [R8.64+UR6+0x10], !PT"),
    (0x000FE2200C5E0D3700000004FF047981, "LDG.E.NA.LTC256B.128 R4, [UR4], P0"),
    (0x000FE2200C1E9B081F61980608FC7981, "LDG.E.64.CONSTANT R252, desc[UR6][R8.64+0x1f6198], !PT"),
])
def test_the_bit_of_a_cache_policy_changes_no_address_without_a_descriptor(word: int, text: str) -> None:
    assert isa_for("sm_89").decode(word).text == text


def test_the_descriptor_that_nvdisasm_hides_is_in_the_canonical_text() -> None:
    isa = descriptor_isa()
    word = isa.encode("STG.E desc[UR20][R2.64+0x10], R5", Control(stall=1))
    decoded = isa.decode(word)
    assert decoded.text == "STG.E [R2.64+0x10], R5"
    assert decoded.canonical == "STG.E desc[UR20][R2.64+0x10], R5"
    assert word >> 64 & 63 == 20
    assert ("UR", 20, 2) in {(u.file, u.first, u.count) for u in decoded.effects.reads}
    with pytest.raises(EncodeError) as caught:
        isa.encode("STG.E [R2.64+0x10], R5", Control(stall=1))
    assert caught.value.code == "operand-hidden"


@pytest.mark.parametrize(("arch", "word", "text"), [
    ("sm_89", 0x000FE2200C1E19000000000402037981, "LDG.E R3, desc[UR4][R2.64]"),
    ("sm_80", 0x000FE2200C1E9B200000100608047981, "LDG.E.LTC128B.64.CONSTANT R4, desc[UR6][R8.64+0x10]"),
    ("sm_86", 0x000FE220081EE1C80000000B020B09A8, "@P0 ATOMG.E.ADD.STRONG.GPU PT, R11, desc[UR8][R2.64], R11"),
])
def test_an_access_with_a_cache_policy_of_its_own_is_told_from_a_plain_one(arch: str, word: int, text: str) -> None:
    """nvdisasm shows its descriptor and hides all others, so the canonical text of both can't be the same."""
    isa = isa_for(arch)
    decoded = isa.decode(word)
    assert decoded.text == text
    assert decoded.canonical == text.replace("desc[", "policy[")
    assert isa.encode(decoded.canonical, Control.from_word(word)) == word
    assert [use.count for use in decoded.effects.reads if use.role == "descriptor"] == [2]
    section = isa.section(np.array([(word & (1 << 64) - 1, word >> 64)], np.uint64))
    assert section.texts(np.zeros(1, np.int64)) == [text]
    assert section.texts(np.zeros(1, np.int64), canonical=True) == [decoded.canonical]
    plain = isa.encode(text, Control.from_word(word))
    assert isa.decode(plain).canonical == text
    assert "desc" not in isa.decode(plain).text


# Compilers' words of rare statements, and mutations of compilers' words, that a table once read as something else.
@pytest.mark.parametrize(("arch", "word", "text"), [
    ("sm_89", 0x000F4200019E0F06E0008A0408047B60, "TEX.LL R6, R4, R8, R4, 0x0, 0x8a, ARRAY_CUBE"),
    ("sm_89", 0x000F4200019E0F0870008A0608067B60, "TEX.SCR.LL R8, R6, R8, R6, 0x0, 0x8a, CUBE"),
    ("sm_89", 0x001FE2200B941D460000000804FF7DAE,
     "LDGSTS.E.BYPASS.LTC128B.128.ZFILL [UR6], desc[UR7][R4.64+0x8]"),
    ("sm_89", 0x001FE2200B9619460000000204FF7DAE, "LDGSTS.E.LTC128B.ZFILL [UR6], desc[UR7][R4.64+0x2]"),
    ("sm_90a", 0x0001E8000B901C440000000038FF7DAE, "LDGSTS.E.BYPASS.128 [UR4], desc[UR5][R56.64]"),
    ("sm_90a", 0x0011620009900F244000040B0C269F60, "@!P1 TEX.LL P0, R36, R38, R12, R11, UR4, 0x0, 3D"),
    ("sm_90a", 0x000FC000000050000000000000006992, "@P6 MEMBAR.SC.VC"),
    ("sm_90a", 0x000FE2000A41D8FF00000007FF007C3E, "F2FP.RELU.TF32.F32.PACK_B.RZ R0, UR7"),
    ("sm_100a", 0x000FE2000A41D8FF00000015FF157C3E, "F2FP.RELU.TF32.F32.PACK_B.RZ R21, UR21"),
    ("sm_103a", 0x000FE2000A4050FF00000009FF197C3E, "F2FP.TF32.F32.PACK_B R25, UR9"),
    ("sm_103a", 0x000FE200100B0800000000FF00157308, "MUFU.EX2.BF16x2 R21, RZ"),
    ("sm_103a", 0x00321E0000000B000000000200307308, "MUFU.EX2.F16x2 R48, R2"),
    ("sm_120a", 0x010FE2000A41D8FF00000015FF257C3E, "F2FP.RELU.TF32.F32.PACK_B.RZ R37, UR21"),
    ("sm_120a", 0x001FE2000A21DCFF00000005FF0672BA, "UF2FP.RELU.TF32.F32.PACK_B.RZ UR6, UR5"),
    ("sm_75", 0x000FE20003809A0000000000FF107984, "LDS.U.64.ZD P0, R16, [RZ]"),
    ("sm_89", 0x000FE2000B800A4200001000FF007FAE, "LDGSTS.E.BYPASS.EF.64 [R0+0x1], [RZ.64+UR2]"),
    ("sm_89", 0x000FE2000B800800E3E79700FFFF7FAE, "LDGSTS.E.BYPASS.EF [-0x1c187], [RZ.U32+UR0+0x700]"),
    ("sm_89", 0x000FE2000F861D440000008B02FF7FAE, "LDGSTS.E.EF.LTC128B.128.ZFILL [RZ], [R2.64+0x8b], !PT"),
    ("sm_89", 0x000FE2000B940C000000400004077FAE, "LDGSTS.E.BYPASS.128.ZFILL [R7+0x4], [R4.U32+UR0]"),
    *((arch, 0x000FE200078E00FF00010000FF157824, "IMAD.MOV.U32 R21, RZ, 0x10000, RZ") for arch in TABLES.values()),
])
def test_rare_words_read_as_nvdisasm_reads_them(arch: str, word: int, text: str) -> None:
    isa = isa_for(arch)
    decoded = isa.decode(word)
    assert decoded.text == text
    with suppress(EncodeError):
        assert isa.decode(isa.encode(decoded.canonical, Control.from_word(word))).text == text


def test_conversions_to_half_pairs_are_spelled_differently_on_sm_89() -> None:
    word = 0x000FE200000000FF000000000300723E
    assert isa_for("sm_80").decode(word).text == "F2FP.PACK_AB R0, R3, R0"
    assert isa_for("sm_89").decode(word).text == "F2FP.F16.F32.PACK_AB R0, R3, R0"


def test_an_architecture_that_its_family_s_table_does_not_name_has_none() -> None:
    # sm_107 spells and admits things that no other member does: USYNCS for SYNCS, UTMAL2CCTL for UTMAPF.L2.
    with pytest.raises(UnsupportedError, match=r"\[isa-missing\].*sm_107a.*supported: .*sm_100a.*sm_120 "):
        isa_for("sm_107a")


@pytest.mark.parametrize(("arch", "word", "text"), [
    ("sm_100a", 0x03C00D080000060006087237, "IMMA.SP.16832.U8.U8 R8, R6{a}.ROW, R0{b}.COL, R8, UP0, R6.reuse, 0x0"),
    ("sm_120a", 0x084050040C0408747A, "QMMA.SF.16832.F32.E4M3.E4M3.E8 R8, R4, R12{b}, R8, R4, R5.reuse, UR4"),
    ("sm_120a", 0x400084050040C0408747F, "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R8, R4, R12{b}, R8, R4, R5.reuse, UR4"),
])
def test_reuse_printed_by_a_bit_of_the_word_sets_that_bit(arch: str, word: int, text: str) -> None:
    isa = isa_for(arch)
    own = 1 << (50 if arch == "sm_100a" else 51)  # nvdisasm prints .reuse behind that register, and for no control bit
    for cached in (0, 1, 2) if "{a}" in text else (0, 2):
        marked = text.format(a=".reuse" * (cached == 1), b=".reuse" * (cached == 2))
        whole = word | own | Control(reuse=cached).to_bits()
        assert isa.decode(whole).text == marked
        assert isa.encode(marked) == whole
        assert isa.encode(marked) == whole, "again, as a line of known shape"
        assert isa.encode(marked.replace("R6.reuse, 0", "R6, 0").replace("R5.reuse", "R5")) == whole & ~own


@pytest.mark.parametrize("table", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_no_opcode_that_goes_to_memory_has_a_fixed_latency(table: str) -> None:
    whole = load(table)
    for name in MEMORY:
        for number in whole.mnemonics.get(name, ()):
            key = whole.key(number)
            assert key is not None
            assert key.extra["kind"] != "fixed", f"{name} {number:04x}"


@pytest.mark.parametrize(
    ("mask", "high", "low"),
    [(0x33, 2, 2), (0x11, 1, 1), (0xF0, 4, 1), (0x0F, 1, 4), (0x77, 3, 3), (0x3F, 2, 4), (0x03, 1, 2)],
)
def test_a_load_of_some_elements_writes_no_more_registers_than_they_need(mask: int, high: int, low: int) -> None:
    # What nvdisasm's life ranges show of these words on sm_120; an empty half still counts as one register.
    isa = isa_for("sm_120")
    word = isa.encode(f"LDG.E.ENL2.256 R0, R16, desc[UR32][R48.64+0x20], {mask:#x}")
    writes = {use.first: use.count for use in isa.decode(word).effects.writes}
    assert writes == {0: high, 16: low}


def test_the_second_register_of_getnextworkid_is_the_one_behind_the_first() -> None:
    """nvdisasm prints it though no bits of the word hold it."""
    isa = isa_for("sm_103a")
    words = [0x7F1 << 105 | 0x800000000000000000073CA | register << 24 for register in range(254)]
    texts = [f"UGETNEXTWORKID.SELFCAST [UR{register}], [UR{register + 1}]" for register in range(254)]
    assert [isa.decode(word).text for word in words] == texts
    halves = np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64)
    section = isa.section(halves)
    assert section.texts(np.zeros(len(words), np.int64)) == texts
    assert [isa.encode(text, Control.from_word(word)) for text, word in zip(texts, words, strict=True)] == words
    with pytest.raises(EncodeError):
        isa.encode("UGETNEXTWORKID.SELFCAST [UR4], [UR6]")


@pytest.mark.parametrize("table", WIDTHS)
def test_addresses_are_as_wide_as_they_say(table: str) -> None:
    whole = load(table)
    wanted = {".64": (2, 0), ".U32": (1, 0)}
    checked = 0
    for number in whole.numbers():
        key = whole.key(number)
        assert key is not None
        for form in key.forms:
            for rule in form.rules if form.shapes else ():
                if rule.role != "address" or form.values[rule.value].kind != "R":
                    continue
                behind = form.attachments[attachment_behind(form.skeleton, rule.value)]
                for label in wanted.keys() & set(behind.labels):
                    for mask, bits in tree.paths(behind.node, behind.labels.index(label)):
                        for word in (base & ~mask | bits for base in form.shapes[:4]):
                            if key.form_of(word) is form and behind.get(word) == label:
                                assert rule.get(word) == wanted[label], (key.opcode_text(word), form.skeleton, label)
                                checked += 1
    assert checked > 100


def attachment_behind(skeleton: str, value: int) -> int:
    """Where the text behind a value stands among a form's attachments."""
    at = seen = 0
    for piece in pieces(skeleton):
        if piece[0].isupper():
            if seen == value:
                return at + 1
            seen += 1
            at += 2
        elif piece[0].islower() or piece[0] == "]":
            at += 1
    raise AssertionError(skeleton)


def test_bits_no_text_shows_are_taken_from_words_of_two_projects_only() -> None:
    """A line in a shape that no compiler word has is refused where all similar words are of one project."""
    lines = resource("isa", "sm_90.jsonl").read_text(encoding="utf-8").splitlines()
    alone = [lines[0]]
    for line in lines[1:]:
        data = json.loads(line)
        if "form" in data:
            data["lone"] = {"one": list(range(len(data["shapes"])))}
        alone.append(json.dumps(data, separators=(",", ":")))
    arch = ARCHES["sm_90a"]
    ours, theirs = isa_for("sm_90a"), Isa(arch, Table("\n".join(alone) + "\n", "sm_90", "sm_90a"))
    tried = refused = 0
    for word, *_ in rows("sm_90")[::4]:
        text = ours.decode(word).canonical
        try:
            made = ours.encode(text, Control.from_word(word))
        except EncodeError:
            continue
        if ours.seen_in_compiler_code(made):
            assert theirs.encode(text, Control.from_word(word)) == made
        elif ours.in_compiler_code(made):
            tried += 1
            try:
                assert theirs.encode(text, Control.from_word(word)) == made
            except EncodeError as error:
                assert error.code == "encode-ambiguous"
                refused += 1
    assert refused > 0.1 * tried > 0, (refused, tried)


@pytest.mark.parametrize(("arch", "text", "reads", "writes"), [
    ("sm_90a", "BRXU UR8 -0x1f0", ["UR8..9"], []), ("sm_100a", "BRXU UR8 -0x1f0", ["UR8..9"], []),
    ("sm_120a", "JMXU UR8", ["UR8..9"], []), ("sm_89", "JMX R16", ["R16..17"], []),
    ("sm_75", "BRX R16 -0x40", ["R16..17"], []), ("sm_90a", "RET.REL UR8 0x10", ["UR8..9"], []),
    ("sm_90a", "ULEPC UR48", [], ["UR48..49"]), ("sm_100a", "RPCMOV.64 Rpc, UR8", ["UR8..9"], []),
    ("sm_100a", "RPCMOV.32 Rpc.LO, UR8", ["UR8"], []), ("sm_90a", "BRA.DIV UR8, 0x3d0", ["UR8"], []),
])
def test_addresses_of_code_are_pairs_of_registers(arch: str, text: str, reads: list[str], writes: list[str]) -> None:
    isa = isa_for(arch)
    effects = isa.decode(isa.encode(text)).effects
    assert ([str(use) for use in effects.reads], [str(use) for use in effects.writes]) == (reads, writes)
