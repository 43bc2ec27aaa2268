"""``gwatch check``: compiler output is clean; each kind of fault is reported with kernel, pc, instruction and cause."""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from torturing.mutations import plant_tables

from gwatch.check import KernelCheck, check_cubin, check_kernel
from gwatch.check.against import align, check_against, ends_with_copy
from gwatch.cli.main import main
from gwatch.cuda.binary import Cubin, nvinfo
from gwatch.cuda.binary.constants import add_constant3
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.errors import UnsupportedError
from gwatch.rewrite import Rewriter, Snippet
from gwatch.rewrite.ring import DESCRIPTOR_BYTES
from gwatch.rewrite.trace import SassTraceSite, TracePlan, plan_trace
from gwatch.sass.control import Control
from gwatch.sass.isa import isa_for
from gwatch.sass.uses import CodeView

TESTS = Path(__file__).resolve().parents[1]
PIPELINE = TESTS / "trace_command" / "pipeline.cubin"
HOLDERS = TESTS / "binary" / "data" / "holders_sm90.cubin"


def kinds(checks: list[KernelCheck]) -> set[str]:
    assert all(not check.refused for check in checks)
    return {item.kind for check in checks for item in check.findings}


def checked(data: bytes) -> list[KernelCheck]:
    return list(check_cubin(Cubin.from_bytes(data)))


def with_word(cubin: Cubin, kernel: str, index: int, change: Callable[[int], int]) -> bytes:
    """The cubin's bytes with one instruction word changed."""
    definition = cubin.get_kerneldef_by_name(kernel)
    place = definition.section.offset + 16 * index
    word = change(int.from_bytes(cubin.data[place : place + 16], "little"))
    return cubin.data[:place] + word.to_bytes(16, "little") + cubin.data[place + 16 :]


def controlled(**fields: int) -> Callable[[int], int]:
    def change(word: int) -> int:
        control = dataclasses.replace(Control.from_word(word), **fields)
        legal = int(0 < control.stall < 12) if control.illegal else control.yield_flag
        return dataclasses.replace(control, yield_flag=legal).replace_in(word)

    return change


def with_attribute(cubin: Cubin, kernel: str, code: Attr, change: Callable[[list[int]], list[int]]) -> bytes:
    """The cubin's bytes with the words of a kernel's attribute changed."""
    section = cubin.get_kerneldef_by_name(kernel).info_section
    assert section is not None
    attributes = [
        item.with_words(change(list(item.words))) if item.code == code else item
        for item in nvinfo.parse(cubin.elf.content(section))
    ]
    editor = Editor(cubin.elf)
    editor.replace(section.index, nvinfo.serialize(attributes))
    return editor.write()


def test_compiler_output_is_clean() -> None:
    for path in (PIPELINE, HOLDERS, TESTS / "inspect" / "fixtures" / "vector_copy.cubin"):
        results = checked(path.read_bytes())
        assert results and kinds(results) == set(), path
        assert all(check.instructions > 0 for check in results)
    assert sum(check.holders for check in checked(HOLDERS.read_bytes())) >= 20
    assert sum(check.pairs for check in checked(HOLDERS.read_bytes())) >= 200


def test_the_command_says_what_it_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(HOLDERS)]) == 0
    out = capsys.readouterr().out
    assert "0 findings" in out and "dependent pairs" in out and "code offsets" in out
    assert main(["check", str(HOLDERS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["totals"]["findings"] == 0 and found["files"][0]["arch"].startswith("sm_90")


def test_a_fault_is_shown_with_kernel_pc_instruction_and_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cubin = Cubin.from_file(HOLDERS)
    kernel, index = first_shortenable(cubin)
    broken = tmp_path / "broken.cubin"
    broken.write_bytes(with_word(cubin, kernel, index, controlled(stall=1)))
    assert main(["check", str(broken)]) == 1
    out = capsys.readouterr().out
    view = CodeView(isa_for("sm_90"), cubin.get_kerneldef_by_name(kernel).words)
    assert f"{kernel} {16 * (index + 1):#x} {view.facts(index + 1).text}" in out
    assert "too-early: " in out and f"(instruction {index})" in out
    assert main(["check", str(broken), "--kernel", f"^{kernel}$", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["files"][0]["kernels"]
    item = found["findings"][0]
    assert (item["kernel"], item["index"], item["kind"]) == (kernel, index + 1, "too-early")


def first_shortenable(cubin: Cubin) -> tuple[str, int]:
    """A fixed-latency instruction whose next one reads its result."""
    for kernel in cubin.get_map_kernel_def().values():
        view = CodeView(isa_for(cubin.arch.name), kernel.words)
        for index in range(len(view) - 1):
            first, second = view.facts(index), view.facts(index + 1)
            if first.mnemonic in ("IADD3", "IMAD", "LOP3") and view.control["stall"][index] >= 4:
                for use in first.writes():
                    if use.file == "R" and any(r.file == "R" and r.covers(use.first) for r in second.reads()):
                        return kernel.name, index
    raise AssertionError("no such pair")


def test_a_dropped_scoreboard_and_a_dropped_wait() -> None:
    cubin = Cubin.from_file(HOLDERS)
    tried = 0
    for kernel in cubin.get_map_kernel_def().values():
        view = CodeView(isa_for(cubin.arch.name), kernel.words)
        for index in range(len(view) - 1):
            facts = view.facts(index)
            board = int(view.control["write_scoreboard"][index])
            following = next(
                (at for at in range(index + 1, len(view)) if int(view.control["wait_mask"][at]) >> board & 1),
                None,
            )
            if facts.mnemonic != "LDG" or board == 7 or following is None:
                continue
            if not any(use.covers(facts.writes()[0].first) for use in view.facts(following).reads()):
                continue
            none = checked(with_word(cubin, kernel.name, index, controlled(write_scoreboard=7)))
            assert kinds(none) & {"unannounced", "in-flight"}
            mask = int(view.control["wait_mask"][following]) & ~(1 << board)
            assert "in-flight" in kinds(
                checked(with_word(cubin, kernel.name, following, controlled(wait_mask=mask)))
            )
            tried += 1
    assert tried >= 1


def test_control_words_that_do_not_exist() -> None:
    cubin = Cubin.from_file(PIPELINE)
    (kernel,) = cubin.get_map_kernel_def()
    view = CodeView(isa_for(cubin.arch.name), cubin.get_kerneldef_by_name(kernel).words)
    fixed = next(i for i in range(len(view)) if view.facts(i).kind == "fixed")
    assert "control" in kinds(
        checked(with_word(cubin, kernel, fixed, lambda word: word & ~(7 << 110) | 6 << 110))
    )
    assert "control" in kinds(checked(with_word(cubin, kernel, fixed, controlled(write_scoreboard=2))))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda words: [words[0] + 16, *words[1:]], "offset"),
        (lambda words: [words[0] + 8, *words[1:]], "offset"),
        (lambda words: [1 << 20, *words[1:]], "offset"),
        (lambda words: words[1:], "offset"),
    ],
)
def test_stale_exit_offsets(change: Callable[[list[int]], list[int]], kind: str) -> None:
    cubin = Cubin.from_file(HOLDERS)
    kernel = next(
        name
        for name, item in cubin.get_map_kernel_def().items()
        if any(a.code == Attr.EXIT_INSTR_OFFSETS and len(a.words) > 0 for a in item.attributes)
    )
    assert kind in kinds(checked(with_attribute(cubin, kernel, Attr.EXIT_INSTR_OFFSETS, change)))


@pytest.mark.parametrize(
    "name",
    ["binary/data/holders_sm120", "rewrite/data/control_sm75", "rewrite/data/control_sm90", "rewrite/data/linked_sm90"],
)
def test_a_table_that_does_not_hold_the_listed_targets(name: str) -> None:
    cubin = Cubin.from_file(TESTS / f"{name}.cubin")
    (kernel,) = (item for item in cubin.get_map_kernel_def().values() if item.indirect_targets)
    assert plant_tables(cubin.data, kernel.name) == (len(kernel.indirect_targets), len(kernel.indirect_targets), [])


def test_too_few_registers() -> None:
    cubin = Cubin.from_file(PIPELINE)
    (kernel,) = cubin.get_map_kernel_def().values()
    section = cubin.elf.find(".nv.info")
    assert section is not None
    old = struct.pack("<II", kernel.symbol.index, kernel.register_count)
    content = cubin.elf.content(section)
    assert content.count(old) == 1
    editor = Editor(cubin.elf)
    editor.replace(section.index, content.replace(old, struct.pack("<II", kernel.symbol.index, 4)))
    assert kinds(checked(editor.write())) == {"registers"}


def test_code_that_cannot_be_read_is_not_called_safe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cubin = Cubin.from_file(PIPELINE)
    (kernel,) = cubin.get_map_kernel_def()
    broken = tmp_path / "broken.cubin"
    broken.write_bytes(with_word(cubin, kernel, 3, lambda word: word | 0xFFF))
    assert main(["check", str(broken)]) == 2
    assert "not checked: [word-unknown]" in capsys.readouterr().out


def test_without_distances_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(table: str) -> None:
        raise UnsupportedError("latency-unknown", f"no latency table for {table}")

    monkeypatch.setattr("gwatch.check.kernel.latency_for", unknown)
    cubin = Cubin.from_file(PIPELINE)
    (kernel,) = cubin.get_map_kernel_def()
    broken = with_attribute(cubin, kernel, Attr.EXIT_INSTR_OFFSETS, lambda words: [words[0] + 16, *words[1:]])
    (check,) = check_cubin(Cubin.from_bytes(broken))
    assert "latency-unknown" in check.refused and {item.kind for item in check.findings} == {"offset"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nothing.cubin"], "artifact-not-found"),
        ([str(PIPELINE), "--kernel", "("], "kernel-pattern"),
        ([str(PIPELINE), "--kernel", "other"], "kernel-none"),
        ([str(TESTS / "conftest.py")], "no-cubin"),
    ],
)
def test_refusals(arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert f"[{code}]" in capsys.readouterr().err


# against the original
# -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> TracePlan:
    cubin = Cubin.from_file(HOLDERS)
    name = next(iter(cubin.get_map_kernel_def()))
    return plan_trace(cubin, name, [SassTraceSite(2), SassTraceSite(9, warp_level=True)])


def compared(plan: TracePlan, data: bytes) -> KernelCheck:
    cubin = Cubin.from_file(HOLDERS)
    before, _ = add_constant3(cubin.data, plan.site_map.descriptor_symbol, DESCRIPTOR_BYTES, b"")
    (check,) = check_cubin(Cubin.from_bytes(data), f"^{plan.site_map.kernel}$")
    check_against(Cubin.from_bytes(before), Cubin.from_bytes(data), check)
    return check


def test_a_rewrite_is_nothing_but_its_insertions(plan: TracePlan, tmp_path: Path) -> None:
    check = compared(plan, plan.data)
    assert check.findings == [] and check.refused == ""
    patched = tmp_path / "patched.cubin"
    patched.write_bytes(plan.data)
    assert main(["check", str(patched), "--original", str(HOLDERS)]) == 0


def test_changes_beyond_insertions_are_found(plan: TracePlan) -> None:
    cubin = Cubin.from_bytes(plan.data)
    name = plan.site_map.kernel
    place = int(plan.rewritten.place_map[5])
    changed = compared(plan, with_word(cubin, name, place, lambda word: word ^ 1 << 24))
    assert {item.kind for item in changed.findings} & {"changed"}
    inserted = np.flatnonzero(plan.rewritten.inserted).tolist()
    words = plan.rewritten.words
    view = CodeView(isa_for(cubin.arch.name), words)
    # A record's result goes to a register that the kernel still needs.
    late = [i for i in inserted if view.facts(i).mnemonic == "LOP3" and i > place // 2]
    following = next(i for i in range(late[-1], len(view)) if not plan.rewritten.inserted[i])
    live = next(
        use.first for at in range(following, len(view)) for use in view.facts(at).reads() if use.file == "R"
    )
    clobbered = compared(
        plan, with_word(cubin, name, late[-1], lambda word: word & ~(0xFF << 16) | live << 16)
    )
    assert "clobber" in {item.kind for item in clobbered.findings}
    moved = compared(
        plan, with_attribute(cubin, name, Attr.EXIT_INSTR_OFFSETS, lambda words: [words[-1], *words[1:]])
    )
    assert "offset" in {item.kind for item in moved.findings}


def test_a_short_kernel_behind_as_much_inserted_code_is_no_copy_of_itself() -> None:
    """The last half of the new code is then word for word the original; to a true copy the code before it branches."""
    isa = isa_for("sm_80")
    lines = ("MOV R1, c[0x0][0x28]", "EXIT", "BRA 0x20", *["NOP"] * 5)

    def halves(text: str, pc: int) -> list[int]:
        word = isa.encode(text, pc=pc)
        return [word & 2**64 - 1, word >> 64]

    old = np.array([halves(text, 16 * at) for at, text in enumerate(lines)], np.uint64)
    inserted = np.array([halves("MOV R2, R3", 0)] * 8, np.uint64)
    masks = np.full_like(old, 2**64 - 1)
    short = np.concatenate([inserted, old])
    assert not ends_with_copy(old, short, isa)
    found = align(old, short, masks, False)
    assert found is not None and found.twin is None and found.place.tolist() == list(range(8, 16))
    inserted[3] = halves("@P0 BRA 0x100", 16 * 3)
    both = np.concatenate([inserted, old, old])
    assert ends_with_copy(old, both, isa)
    found = align(old, both, masks, True)
    assert found is not None and found.twin == 16 and found.place.tolist() == list(range(8, 16))


def test_a_kernel_that_is_not_in_the_original() -> None:
    check = KernelCheck("other", "sm_90", 0)
    check_against(Cubin.from_file(HOLDERS), Cubin.from_file(PIPELINE), check)
    assert [item.kind for item in check.findings] == ["missing"]


@pytest.mark.parametrize("name", ["printf_kernel", "malloc_kernel", "assert_kernel"])
def test_places_that_code_computes_with_move_along(name: str) -> None:
    # sm_75 loads the place of an LEPC, and where to return to, as immediates; both follow the code.
    before = Cubin.from_file(TESTS / "rewrite" / "data" / "control_sm75.cubin")
    rewriter = Rewriter(before, name)
    rewriter.insert(1, Snippet("MOV %r0, 0x1"))
    made = rewriter.apply()
    (check,) = check_cubin(Cubin.from_bytes(made.data), f"^{name}$")
    check_against(before, Cubin.from_bytes(made.data), check)
    assert check.findings == [] and not check.refused
    for index in (*made.origins, *made.returns):
        stale = with_word(Cubin.from_bytes(made.data), name, int(made.place_map[index]), lambda word: word - (16 << 32))
        (check,) = check_cubin(Cubin.from_bytes(stale), f"^{name}$")
        check_against(before, Cubin.from_bytes(stale), check)
        assert check.findings, index


def test_a_product_of_sm_89_may_take_a_scoreboard_or_none(corpus_all: list[Path]) -> None:
    """Compilers do both: a result is announced where it takes one, else it comes after a fixed time."""
    (path,) = [item for item in corpus_all if "sm_89-bitsandbytes-33a0e4586f25" in item.name]
    cubin = Cubin.from_file(path)
    kernel = cubin.get_kerneldef_by_regex("sm80_m16n8k16I6__halfLi32ELi64ELi64EE")
    assert check_kernel(cubin, kernel).findings == []
    product = next(index for index, text in enumerate(kernel.texts) if text.startswith("HMMA"))
    data = bytearray(cubin.data)
    at = kernel.section.offset + 16 * product
    word = int.from_bytes(data[at : at + 16], "little")
    assert word >> 110 & 7 == 7
    data[at : at + 16] = (word & ~(7 << 110) | 5 << 110).to_bytes(16, "little")
    changed = Cubin.from_bytes(bytes(data))
    kinds = [item.kind for item in check_kernel(changed, changed.get_kerneldef_by_name(kernel.name)).findings]
    assert "control" not in kinds and "unannounced" not in kinds


def test_an_attribute_tells_an_original_nop_from_an_equal_one_that_was_inserted(corpus_sm90: list[Path]) -> None:
    (path,) = (item for item in corpus_sm90 if "38d1a903907e" in item.name)
    before = Cubin.from_file(path)
    kernel = before.get_kerneldef_by_name("_Z23get_mla_metadata_kernel19Mla_metadata_params")
    index = 186
    group = next(item for item in kernel.attributes if item.code == Attr.COOP_GROUP_INSTR_OFFSETS)
    assert kernel.texts[index] == "NOP" and 16 * index in group.words
    rewriter = Rewriter(before, kernel)
    rewriter.insert(index + 1, Snippet("NOP\nNOP"))
    made = rewriter.apply()
    place = int(made.place_map[index])
    assert (made.words[place : place + 2] == made.words[place]).all(), "the inserted one looks the same"

    def findings(data: bytes) -> list[str]:
        (check,) = check_cubin(Cubin.from_bytes(data), f"^{kernel.name}$")
        check_against(before, Cubin.from_bytes(data), check)
        return [item.kind for item in check.findings]

    assert findings(made.data) == []
    moved = with_attribute(
        Cubin.from_bytes(made.data),
        kernel.name,
        Attr.COOP_GROUP_INSTR_OFFSETS,
        lambda words: [word + 48 if word == 16 * place else word for word in words],
    )
    assert "offset" in findings(moved)
