"""Whole rewrites of corpus kernels, proved through nvdisasm."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from records import PROLOGUE, RECORD_A, RECORD_B, named, recorder

from gwatch.cuda.binary import Cubin
from gwatch.errors import EncodeError, GWatchError, HazardError, KernelError, SiteError, UnsupportedError
from gwatch.rewrite import Rewriter, Snippet
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.rewrite.verify import verify
from gwatch.sass.abi import survivors
from gwatch.sass.cfg import build_cfg
from gwatch.sass.control import Control
from gwatch.sass.integrity import Kept
from gwatch.sass.isa import isa_for
from gwatch.sass.uses import CodeView

POINTERS = "jax_cuda13_plugin-bb4300356c24"
LINALG = "jax_cuda13_plugin-9878d0d4aeac"
MARK = Snippet("IADD3 %r0, RZ, {number}, RZ", name="mark")


def kernel_of(paths: list[Path], part: str, pattern: str = ".") -> tuple[bytes, Rewriter]:
    image = named(paths, part).read_bytes()
    cubin = Cubin.from_bytes(image)
    kernels = [
        kernel for name, kernel in cubin.get_map_kernel_def().items() if pattern in name or pattern == "."
    ]
    return image, Rewriter(cubin, kernels[0])


def test_records_and_a_twin_in_a_kernel_with_an_inner_function(corpus_sm90: list[Path]) -> None:
    image = named(corpus_sm90, POINTERS).read_bytes()
    cubin = Cubin.from_bytes(image)
    (kernel,) = cubin.get_map_kernel_def().values()
    rewriter = recorder(cubin, kernel)
    # The first instruction, a call, the instruction a call returns to, the inner function's first, its return.
    for number, index in enumerate((0, 20, 21, 128, 193)):
        rewriter.insert(index, RECORD_B if number % 2 else RECORD_A, {"site": number, "mask": 0xFF00})
    result = rewriter.apply()
    assert result.registers_before == 26 and result.registers_after == 32
    assert result.returns == (19,), "MOV R2, 0x150 loads a return address"
    found = verify(image, result)
    assert (found.instructions, found.copies) == (208, 2)
    assert found.inserted == sum(site.count for site in result.sites)
    assert found.targets == 11 and found.offsets == 6
    stalls = [[control[0] for control in site.controls] for site in result.sites[1:]]
    assert stalls[2] == [1, 1, 5, 1, 1]
    assert stalls[1] == [1, 1, 1, 11, 1, 1]


def test_random_sites_of_every_corpus_file(corpus_sm90: list[Path]) -> None:
    rng = random.Random(20)
    done = refused = 0
    for path in corpus_sm90:
        image = path.read_bytes()
        cubin = Cubin.from_bytes(image)
        kernels = list(cubin.get_map_kernel_def().values())
        for kernel in rng.sample(kernels, min(2, len(kernels))):
            try:
                rewriter = recorder(cubin, kernel)
                count = rewriter.surroundings.padding
                for number in range(3):
                    index = rng.choice((0, count - 1, rng.randrange(count)))
                    rewriter.insert(index, rng.choice((RECORD_A, RECORD_B)), {"site": number, "mask": 0xFF00})
                result = rewriter.apply()
            except GWatchError as error:
                assert error.code in {"jump-table", "setmaxnreg", "callee-unknown", "predicates"}, (
                    path.name,
                    error,
                )
                refused += 1
            else:
                verify(image, result)
                done += 1
    assert done >= 8 and refused <= 5


def test_insertions_at_one_place_keep_their_order_and_unsorted_calls_are_fine(
    corpus_sm90: list[Path],
) -> None:
    image, rewriter = kernel_of(corpus_sm90, POINTERS)
    for index, number in ((9, 1), (4, 2), (9, 3), (0, 4), (9, 5)):
        rewriter.insert(index, MARK, {"number": number}, label=f"mark {number}")
    result = rewriter.apply()
    verify(image, result)
    texts = {site.label: site.texts[0] for site in result.sites}
    assert texts["mark 3"].endswith("0x3, RZ")
    firsts = {site.label: site.first for site in result.sites}
    assert firsts == {"mark 4": 0, "mark 2": 5, "mark 1": 11, "mark 3": 12, "mark 5": 13}
    assert result.target_map[9] == 11 and result.place_map[9] == 14
    assert result.twin is None and len(result.words) % 8 == 0


def test_the_entry_comes_before_a_site_at_the_first_instruction(corpus_sm90: list[Path]) -> None:
    image, rewriter = kernel_of(corpus_sm90, POINTERS)
    rewriter.insert(0, MARK, {"number": 1})
    rewriter.insert("entry", MARK, {"number": 2})
    result = rewriter.apply()
    verify(image, result)
    assert [site.first for site in result.sites] == [1, 0]
    assert result.target_map[0] == 0 and result.place_map[0] == 2


def test_the_last_instruction_can_be_a_site_but_padding_cannot(corpus_sm90: list[Path]) -> None:
    image, rewriter = kernel_of(corpus_sm90, POINTERS)
    last = rewriter.surroundings.padding - 1
    rewriter.insert(last, MARK, {"number": 1})
    verify(image, rewriter.apply())
    with pytest.raises(SiteError, match=r"\[site-padding\]"):
        rewriter.insert(last + 1, MARK, {"number": 1})


def test_kernel_bytes_outside_the_rewritten_one_stay(corpus_sm90: list[Path]) -> None:
    image = named(corpus_sm90, LINALG).read_bytes()
    before = Cubin.from_bytes(image)
    kernels = list(before.get_map_kernel_def())
    rewriter = Rewriter(before, kernels[2])
    rewriter.insert(7, MARK, {"number": 1})
    after = Cubin.from_bytes(rewriter.apply().data)
    for name in kernels:
        same = np.array_equal(
            before.get_kerneldef_by_name(name).words, after.get_kerneldef_by_name(name).words
        )
        assert same == (name != kernels[2])
        counts = [cubin.get_kerneldef_by_name(name).register_count for cubin in (before, after)]
        assert counts[0] == counts[1], "a dead register will do"
    assert before.data == image, "the rewriter changed its input"


def test_a_value_is_read_when_it_is_ready(corpus_sm90: list[Path]) -> None:
    """Right behind each producer, on every path: the checker sees what the scheduler did and agrees."""
    image, rewriter = kernel_of(corpus_sm90, POINTERS)
    copy = Snippet("IADD3 %r0, {value}, RZ, RZ", name="copy")
    view = rewriter.surroundings.view
    kinds = set()
    for index in range(1, 60):
        written = [use for use in view.facts(index - 1).writes() if use.file == "R"]
        if not written or view.facts(index - 1).mnemonic in ("BRA", "CALL"):
            continue
        single = Rewriter(rewriter.cubin, rewriter.kernel)
        single.insert(index, copy, {"value": f"R{written[0].first}"})
        try:
            result = single.apply()
        except SiteError as error:
            # LDC R1 takes no scoreboard because nobody reads the stack pointer: there is nothing to wait for.
            assert error.code == "value-not-ready" and index == 1
            continue
        if index % 10 == 0:
            verify(image, result)
        board = int(view.control["write_scoreboard"][index - 1])
        *_, last = result.sites[0].controls
        if view.facts(index - 1).kind == "variable" and board < 6:
            assert last[4] >> board & 1, view.facts(index - 1).text
            kinds.add("variable")
        elif view.facts(index - 1).kind == "fixed":
            waiting = sum(control[0] for control in result.sites[0].controls[:-1]) + view.stall(index - 1)
            assert waiting >= 4, view.facts(index - 1).text
            kinds.add("fixed")
    assert kinds == {"variable", "fixed"}


def test_a_snippet_with_a_loop_of_its_own(corpus_sm90: list[Path]) -> None:
    image, rewriter = kernel_of(corpus_sm90, POINTERS)
    rewriter.insert(
        30,
        Snippet(
            """
            IMAD.MOV.U32 %r0, RZ, RZ, 0x3
            again: IADD3 %r0, %r0, -0x1, RZ
            ISETP.NE.AND %p0, PT, %r0, RZ, PT
            @%p0 BRA again
            @!%p0 BRA done
            IADD3 %r0, %r0, 0x1, RZ
            done: NOP
            """
        ),
    )
    result = rewriter.apply()
    verify(image, result)
    kernel = Cubin.from_bytes(result.data).get_kerneldef_by_name(result.kernel)
    site = result.sites[0]
    texts = [kernel.text(site.first + place) for place in range(site.count)]
    (again,) = [place for place, text in enumerate(texts) if "-0x1, RZ" in text]
    (back, out) = [text for text in texts if "BRA" in text]
    assert back.endswith(f"BRA {(site.first + again) * 16:#x}")
    assert out.endswith(f"BRA {(site.first + site.count - 1) * 16:#x}") and texts[-1] == "NOP"


def test_excluded_registers_are_not_touched(corpus_sm90: list[Path]) -> None:
    image = named(corpus_sm90, POINTERS).read_bytes()
    cubin = Cubin.from_bytes(image)
    excluded = {"general": [24, 26, 27], "predicate": [6, 5], "uniform_general": [61, 62]}
    rewriter = Rewriter(cubin, next(iter(cubin.get_map_kernel_def())), excluded)
    rewriter.insert(
        12,
        Snippet(
            "ULDC.64 %u, c[0x0][0x208]\nISETP.NE.AND %p0, PT, R9, RZ, PT\n@%p0 IADD3 %r0, %r1, %t, %t+1",
            registers={"t": 2},
            uniforms={"u": 2},
        ),
    )
    result = rewriter.apply()
    verify(image, result)
    given = result.sites[0].registers
    assert given == {"t": "R28", "u": "UR58", "p0": "P4", "r0": "R25", "r1": "R2"}


def test_integers_are_written_as_the_instruction_wants_them(corpus_sm90: list[Path]) -> None:
    _, rewriter = kernel_of(corpus_sm90, POINTERS)
    snippet = Snippet("LOP3.LUT %r0, %r0, {mask}, RZ, 0xc0, !PT\nIADD3 %r1, %r1, {step}, RZ")
    rewriter.insert(8, snippet, {"mask": -256, "step": 0xFFFFFFF0})
    assert [text.split(", ")[2] for text in rewriter.apply().sites[0].texts] == ["0xffffff00", "-0x10"]
    rewriter = Rewriter(rewriter.cubin, rewriter.kernel)
    rewriter.insert(8, snippet, {"mask": 1 << 32, "step": 1})
    with pytest.raises(EncodeError, match="line 1 of snippet"):
        rewriter.apply()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("MOV R5, RZ", "snippet-clobbers"),
        ("EXIT", "snippet-flow"),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "snippet-flow"),
        ("BRA 0x0", "snippet-flow"),
        ("UIADD3 %ur0, UR4, 0x1, URZ", "uniform-write"),
    ],
)
def test_snippets_that_would_break_a_kernel_are_refused(
    corpus_sm90: list[Path], text: str, code: str
) -> None:
    _, rewriter = kernel_of(corpus_sm90, POINTERS)
    rewriter.insert(8, Snippet(text))
    with pytest.raises(UnsupportedError) as caught:
        rewriter.apply()
    assert caught.value.code == code


def test_requests_that_make_no_sense_are_refused(corpus_sm90: list[Path]) -> None:
    _, rewriter = kernel_of(corpus_sm90, POINTERS)
    for where in (-1, 208, "middle", True):
        with pytest.raises(SiteError, match=r"\[site-range\]"):
            rewriter.insert(where, MARK, {"number": 1})
    with pytest.raises(SiteError, match=r"\[snippet-value\].*missing"):
        rewriter.insert(3, MARK)
    with pytest.raises(SiteError, match=r"\[snippet-value\].*not used"):
        rewriter.insert(3, MARK, {"number": 1, "more": 2})
    with pytest.raises(SiteError, match=r"\[snippet-state\]"):
        rewriter.insert(3, RECORD_A, {"site": 1, "mask": 1})
    with pytest.raises(SiteError, match=r"\[no-site\]"):
        rewriter.apply()
    for name in ("off", "base", "a"):
        rewriter.reserve(name, 2 if name == "a" else 1)
    with pytest.raises(SiteError, match=r"\[state-name\]"):
        rewriter.reserve("off")
    rewriter.reserve("d", 2, "UR")
    rewriter.insert("entry", PROLOGUE)
    with pytest.raises(SiteError, match=r"\[no-twin\]"):
        rewriter.apply(twin=False)
    with pytest.raises(KernelError):
        Rewriter(rewriter.cubin, "nothing")


def test_state_outlives_driver_functions_in_registers_that_they_keep(corpus_sm90: list[Path]) -> None:
    path = named(corpus_sm90, "sgl_flash_mla-38d1a903907e")
    cubin = Cubin.from_file(path)
    (kernel,) = cubin.get_map_kernel_def().values()
    rewriter = recorder(cubin, kernel)
    for site, index in enumerate((317, 325)):
        rewriter.insert(index, RECORD_A, {"site": site, "mask": 0xFF00})
    result = rewriter.apply()
    verify(path.read_bytes(), result)
    kept = survivors(cubin.arch)
    assert {*result.state} == {"off", "base", "a+1", "d"}
    for name, register in result.state.items():
        file = register.rstrip("0123456789")
        assert (file, int(register.removeprefix(file))) in kept, name
    # vprintf may put a register away and use it: nothing is in flight when the kernel calls it.
    around = rewriter.surroundings
    calls = []
    for site in result.sites[1:]:
        (store,) = [i for i, text in enumerate(site.texts) if "STG" in text]
        board = site.controls[store][3]
        for call in around.leaves:
            if around.cfg.reachable([site.index])[call] and not site.controls[-1][4] >> board & 1:
                waited = Control.from_word(kernel.list_instructions[call].word).wait_mask
                assert waited >> board & 1, (
                    f"the call at {call} does not wait for the store before {site.index}"
                )
                calls.append(call)
    assert calls == [317], "the call that follows the first site; none follows the second"
    plain = Rewriter(cubin, kernel)
    plain.insert(100, MARK, {"number": 1})
    verify(path.read_bytes(), plain.apply())


def test_state_is_only_needed_up_to_the_last_record(corpus_sm90: list[Path]) -> None:
    # A failed check: vprintf (instruction 317), a trap, then the rest of the kernel.
    path = named(corpus_sm90, "sgl_flash_mla-38d1a903907e")
    cubin = Cubin.from_file(path)
    around = Rewriter(cubin, next(iter(cubin.get_map_kernel_def().values()))).surroundings
    assert around.leaves == [317]
    after = around.cfg.reachable([318])
    for site in (0, 100, 317, 318, 325):
        assert around.outside_call([site]) == (317 if after[site] else None)
    assert not after[[0, 100, 317]].any() and after[[318, 325]].all()
    assert around.outside_call([100, 325]) == 317
    sites = [SassTraceSite(100), SassTraceSite(317, warp_level=True)]
    before = plan_trace(cubin, around.kernel.name, sites, clock="sm")
    verify(path.read_bytes(), before.rewritten)


def test_verify_notices_what_it_is_there_to_notice(corpus_sm90: list[Path]) -> None:
    image, rewriter = kernel_of(corpus_sm90, POINTERS)
    rewriter.insert(20, MARK, {"number": 1})
    result = rewriter.apply()
    shifted = result.place_map.copy()
    shifted[25] += 1
    with pytest.raises(HazardError, match="place map"):
        verify(image, dataclasses.replace(result, place_map=shifted))
    broken = bytearray(result.data)
    words = result.words.tobytes()
    at = bytes(broken).index(words)
    old = (
        Cubin.from_bytes(image).get_kerneldef_by_name(result.kernel).words[18].tobytes()
    )  # a branch, unmoved
    place = at + int(result.place_map[18]) * 16
    broken[place : place + 16] = old
    with pytest.raises(HazardError, match="instruction 18"):
        verify(image, dataclasses.replace(result, data=bytes(broken)))


def test_occupancy_knows_the_kernel_s_static_shared_memory(corpus_sm90: list[Path]) -> None:
    cubin = Cubin.from_file(named(corpus_sm90, "bitsandbytes-d24c5a182260"))
    (name,) = [
        key
        for key in cubin.get_map_kernel_def()
        if key.startswith("_Z18kQuantizeBlockwiseIfLi4096ELi4ELi1ELi0")
    ]
    rewriter = Rewriter(cubin, name)
    rewriter.insert(5, MARK, {"number": 1})
    result = rewriter.apply()
    # 38,072 bytes of shared memory, to which the section adds the system's 1 KiB: 5 CTAs in 228 KiB.
    assert rewriter.surroundings.static_shared == 38072
    assert (result.registers_before, result.registers_after) == (40, 40)
    assert (result.threads_per_cta, result.occupancy_before, result.occupancy_after) == (128, 5, 5)


def test_a_site_behind_an_operand_kept_by_the_instruction_itself_is_refused() -> None:
    """Sparse products mark the register of their metadata by a bit of the opcode, which is no control bit."""
    cubin = Cubin.from_file(Path(__file__).parents[1] / "scopes/data/markers_sm80.cubin")
    kernel = next(iter(cubin.get_map_kernel_def().values()))
    index = next(
        at for at, text in enumerate(kernel.texts) if at > 8 and text.startswith(("IADD3 ", "IMAD ", "MOV "))
    )
    sparse = isa_for("sm_80").encode("HMMA.SP.16832.F32.BF16 R4, R0, R0, R4, R2.reuse, 0x1")
    data = bytearray(cubin.data)
    at = kernel.section.offset + 16 * index
    data[at : at + 16] = sparse.to_bytes(16, "little")
    rewriter = Rewriter(Cubin.from_bytes(bytes(data)), kernel.name)
    rewriter.insert(index + 1, MARK, {"number": 1})
    with pytest.raises(
        SiteError, match=rf"^\[site-reuse\] .*: instruction {index} \(HMMA.SP.*R2.reuse, 0x1\)"
    ):
        rewriter.apply()


def test_a_site_that_no_path_leads_to_is_refused() -> None:
    cubin = Cubin.from_file(Path(__file__).parents[2] / "examples/cuda/trace/matmul_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("matmul")
    start = kernel.section.offset
    leave = start + 16 * next(at for at, text in enumerate(kernel.texts) if text == "EXIT")
    data = bytearray(cubin.data)
    data[start + 16 * 9 : start + 16 * 10] = data[leave : leave + 16]
    changed = Cubin.from_bytes(bytes(data))
    assert plan_trace(changed, "matmul", [SassTraceSite(8)]).rewritten.sites
    with pytest.raises(SiteError, match=r"^\[site-unreachable\] matmul: .* leads to instruction 12; choose"):
        plan_trace(changed, "matmul", [SassTraceSite(12)])


def test_operands_kept_across_instructions_that_read_none_are_not_kept_across_an_insertion() -> None:
    cubin = Cubin.from_file(Path(__file__).resolve().parents[1] / "binary/data/holders_sm90.cubin")
    (name,) = (name for name in cubin.get_map_kernel_def() if "halves" in name)
    rewriter = Rewriter(cubin, name)
    texts = rewriter.kernel.texts[12:15]
    assert [text.split()[0] for text in texts] == ["LOP3.LUT", "BAR.SYNC.DEFER_BLOCKING", "LOP3.LUT"]
    rewriter.insert(14, Snippet("IMAD.MOV.U32 %r0, RZ, RZ, 0x7"))
    result = rewriter.apply()
    assert [edit.index for edit in result.edits] == [12]
    verify(cubin.data, result)


def kept_before(arch: str, lines: Sequence[tuple[str, int]]) -> list[list[int]]:
    """The instructions that keep operands, before each of ``lines`` (text, reuse bits) and behind the last."""
    isa = isa_for(arch)
    encoded = [isa.encode(text, control=Control(stall=2, yield_flag=1, reuse=bits)) for text, bits in lines]
    words = np.array([(word & (1 << 64) - 1, word >> 64) for word in encoded], np.uint64)
    kept = Kept(isa, CodeView(isa, words), build_cfg(isa, words))
    return [kept.before(index) for index in range(len(lines) + 1)]


def test_an_operand_is_kept_until_another_one_is_read_in_its_place() -> None:
    lines = [
        ("FMUL R5, R12, R53", 2),
        ("FFMA R10, R10, UR26, R57", 0),  # reads general registers, but none as second operand
        ("FADD R6, R7, RZ", 0),
        ("FMUL R7, R14, R53", 3),
        ("MUFU.RCP R4, R3", 0),
        ("IADD3 R8, R14, R9, RZ", 0),
        ("IADD3 R8, R2, R9, RZ", 0),
    ]
    assert kept_before("sm_90", lines) == [[], [0], [0], [0], [3], [3], [], []]
    assert kept_before("sm_90", [lines[0], lines[1], ("EXIT", 0), lines[3]]) == [[], [0], [0], [0], [3]]


def test_operands_kept_across_readers_of_others_are_not_kept_across_an_insertion(corpus_all: list[Path]) -> None:
    (path,) = (item for item in corpus_all if "183fdb8ba21b" in item.name)
    cubin = Cubin.from_file(path)
    rewriter = Rewriter(cubin, "_Z21kOptimizer32bit2StateI6__halfLi6EEvPT_S2_PfS3_S3_ffffffffiffbi")
    view = rewriter.surroundings.view
    (first,) = (index for index in range(len(view)) if view.facts(index).text == "FMUL.FTZ R55, R12, R53")
    assert [view.facts(first + step).text for step in (1, 2, 3)] == [
        "FFMA.FTZ R10, R10, UR26, R57",
        "FFMA.FTZ R11, R11, UR26, R46",
        "FMUL.FTZ R57, R14, R53",
    ]
    assert view.control["reuse"][first] == 2
    rewriter.insert(first + 2, Snippet("IMAD.MOV.U32 %r0, RZ, RZ, 0x7"))
    result = rewriter.apply()
    assert [(edit.index, edit.bits) for edit in result.edits] == [(first, 2)]
    verify(cubin.data, result)
