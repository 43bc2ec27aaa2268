"""Registers under pressure: dead registers, values that move, budgets by warp role, saved registers and predicates."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gwatch.check import check_kernel
from gwatch.check.against import check_against
from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.constants import add_constant3
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.cuda.binary.nvinfo import parse as parse_attributes
from gwatch.errors import HazardError
from gwatch.rewrite import Rewriter, Snippet, builtin
from gwatch.rewrite import rewriter as rewriter_module
from gwatch.rewrite import trace as trace_module
from gwatch.rewrite.homes import Home, Housing
from gwatch.rewrite.planning import Effort
from gwatch.rewrite.result import Rewritten
from gwatch.rewrite.ring import DESCRIPTOR_BYTES
from gwatch.rewrite.surroundings import Surroundings
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.rewrite.verify import verify
from gwatch.sass.control import Control
from gwatch.sass.hazards import RewriteChecker, check_rewrite
from gwatch.sass.integrity import Rewrite
from gwatch.sass.isa import isa_for
from gwatch.sass.replay import MIXED, State
from gwatch.sass.uses import CodeView

MATMUL = Path(__file__).parents[2] / "examples" / "cuda" / "trace" / "matmul_sm90.cubin"
# tests/gpu/kernels/pressure.cu, nvcc -cubin -arch=sm_90a
PRESSURE = Path(__file__).parent / "data" / "pressure_sm90a.cubin"

# tests/rewrite/data/framed.cu, nvcc -cubin -arch=sm_90
PARKED = Path(__file__).parent / "data" / "framed_sm90.cubin"

GUARDED = Path(__file__).parent / "data" / "guarded_sm90.cubin"


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans may not raise the count: what isn't dead is saved."""

    def only(attempt: Any, recorders: list[builtin.Recorder]) -> tuple[builtin.Recorder, Rewritten]:
        return recorders[-1], attempt(recorders[-1], Effort.SAVE)

    monkeypatch.setattr(trace_module, "_first_that_fits", only)


def test_each_role_keeps_its_budget() -> None:
    cubin = Cubin.from_file(PRESSURE)
    kernel = cubin.get_kerneldef_by_name("roles_kernel")
    budgets = Rewriter(cubin, kernel).surroundings.budgets
    assert budgets.roles == [24, 168, 240]
    wanted = ("HGMMA", "UBLKCP", "TRYWAIT", "SYNCS.ARRIVE", "WARPGROUP.DEPBAR")
    sites = [i for i, text in enumerate(kernel.texts) if any(word in text for word in wanted)]
    assert {int(budgets.count[i]) for i in sites} == {24, 240}
    result = plan_trace(
        cubin, kernel, [SassTraceSite(i, warp_level=True) for i in sites], clock="sm"
    ).rewritten
    assert result.registers_after == result.registers_before == 168
    view = CodeView(cubin_isa := isa_for("sm_90a"), result.words)
    assert cubin_isa is view.isa
    masks = view.masks("R")
    for index, placed in zip(sites, result.sites[1:], strict=False):
        named = max(
            (masks.reads[at] | masks.writes[at]).bit_length() - 1
            for at in range(placed.first, placed.first + placed.count)
        )
        assert named <= int(budgets.count[index]) - 3, placed.texts
    # Accumulators of products in flight are nobody's scratch.
    product = next(i for i in sites if "HGMMA" in kernel.texts[i])
    written = result.sites[1 + sites.index(product) + 1]
    assert not any(f" R{r}," in text for text in written.texts for r in range(24, 88))
    verify(cubin.data, result)


def test_values_move_between_dead_registers_where_none_lasts() -> None:
    cubin = Cubin.from_file(PRESSURE)
    kernel = cubin.get_kerneldef_by_name("full_kernel")
    assert kernel.register_count >= 250
    loop = [i for i, text in enumerate(kernel.texts) if "FFMA" in text]
    result = plan_trace(cubin, kernel, [SassTraceSite(loop[len(loop) // 2])], clock="sm").rewritten
    assert result.registers_after <= 255 and result.moves
    assert any("/" in homes for homes in result.state.values())
    verify(cubin.data, result)


def test_live_registers_are_saved_and_put_back(saving: None) -> None:
    cubin = Cubin.from_file(MATMUL)
    plan = plan_trace(cubin, "matmul", [SassTraceSite(60)], clock="sm")
    result = plan.rewritten
    placed = result.sites[1]
    assert result.registers_after == 32 and result.occupancy_after == 8
    (saved,) = placed.saved
    # Nobody waits for the kernel's own load of R1.
    assert placed.texts[0] == "LDC R1, c[0x0][0x28]"
    assert placed.texts[1] == f"STL [R1+-0x4], {saved}" and placed.texts[-2] == f"LDL {saved}, [R1+-0x4]"
    assert placed.waits == 1 and result.local_bytes == 4
    patched = Cubin.from_bytes(plan.data)
    symbol = patched.get_kerneldef_by_name("matmul").symbol.index
    info = parse_attributes(patched.elf.content(patched.elf.find(".nv.info")))
    wanted = (Attr.FRAME_SIZE, Attr.MIN_STACK_SIZE)
    sizes = {item.code: item.words[1] for item in info if item.code in wanted and item.words[0] == symbol}
    assert sizes == {Attr.FRAME_SIZE: 16, Attr.MIN_STACK_SIZE: 16}
    verify(cubin.data, result)


@pytest.fixture
def parking(monkeypatch: pytest.MonkeyPatch) -> None:
    """No register keeps a value from site to site."""

    def only(attempt: Any, recorders: list[builtin.Recorder]) -> tuple[builtin.Recorder, Rewritten]:
        return recorders[-1], attempt(recorders[-1], Effort.PARK)

    monkeypatch.setattr(trace_module, "_first_that_fits", only)
    monkeypatch.setattr(Housing, "place", lambda *_: False)


@pytest.mark.parametrize("kernel", ["roles_kernel", "full_kernel", "framed"])
def test_values_that_no_register_keeps_are_kept_in_local_memory(parking: None, kernel: str) -> None:
    cubin = Cubin.from_file(PARKED if kernel == "framed" else PRESSURE)
    definition = cubin.get_kerneldef_by_name(kernel)
    around = Rewriter(cubin, definition).surroundings
    assert around.parking and (around.frame > 0) == (kernel == "framed")
    count = around.padding
    plan = plan_trace(
        cubin, definition, [SassTraceSite(i) for i in (0, count // 3, count // 2, count - 1)], clock="sm"
    )
    result = plan.rewritten
    assert result.occupancy_after == result.occupancy_before and result.state["off"] == "local memory"
    assert all(placed.ways["off"] == "parked" for placed in result.sites[1:])
    assert result.local_bytes % 4 == 0 and result.local_bytes >= 4
    entry = result.sites[0].texts
    store = next(text for text in entry if text.startswith("STL"))
    assert store.split("+-")[1].startswith(f"{4 + around.frame:#x}]")
    verify(cubin.data, result)
    before, _ = add_constant3(cubin.data, plan.site_map.descriptor_symbol, DESCRIPTOR_BYTES, b"")
    patched = Cubin.from_bytes(plan.data)
    check = check_kernel(patched, patched.get_kerneldef_by_name(kernel))
    check_against(Cubin.from_bytes(before), patched, check)
    assert not check.findings and not check.refused


def test_a_value_in_local_memory_that_is_lost_is_caught(
    monkeypatch: pytest.MonkeyPatch, parking: None
) -> None:
    caught = _caught(monkeypatch, PARKED, "framed", 60)
    view, entry = caught.checker.view, caught.rewrite.entry
    texts = {index: view.facts(index).text for index in caught.checker.new}
    first, back = (
        i for i, text in texts.items() if text.startswith("STL") and (i < entry or "+-0x4]" in text)
    )
    (load,) = [i for i, text in texts.items() if text.startswith("LDL") and "+-0x4]" in text]
    (top,) = [i for i, text in texts.items() if text.startswith("LDC") and "[0x28]" in text]
    frame = Rewriter(Cubin.from_file(PARKED), "framed").surroundings.frame
    assert first < entry < load < back and caught.kinds({}) == set()
    # Not stored at the entry; stored into the frame, past the stack, from another base; an old value left behind.
    assert "stale" in caught.kinds({first: "NOP"})
    assert {"stale", "stack"} & caught.kinds(
        {first: texts[first].replace(f"-{4 + frame:#x}", f"-{frame:#x}")}
    )
    assert "stack" in caught.kinds({first: texts[first].replace(f"-{4 + frame:#x}", f"-{1024 + frame:#x}")})
    assert "stack" in caught.kinds({top: texts[top].replace("[0x28]", "[0x2c]")})
    assert "stale" in caught.kinds({back: "NOP"})
    assert "stale" in caught.kinds({load: "NOP"})
    assert "stale" in caught.kinds({load: texts[load].replace("-0x4", "-0x8")})
    assert "stack" in caught.kinds({load: texts[load].replace("-0x4", "-0x404")})
    assert "stack" in {
        item.kind
        for item in RewriteChecker(
            caught.checker.isa, caught.checker.latency, dataclasses.replace(caught.rewrite, frame=0)
        ).run()
    }


def test_a_home_behind_a_site_counts_only_where_the_value_is_still_needed() -> None:
    """The place behind instruction 0 has a home because another way there needs the value."""
    points = SimpleNamespace(before=lambda index: 0, behind=lambda index: 1)
    housing = Housing(points)  # type: ignore[arg-type]
    registers = np.array([8, 7], np.int16)
    for needed, home in ((False, 8), (True, 7)):
        housing.homes["base"] = Home("base", registers, behind=np.array([needed]))
        assert housing.at("base", 0) == home


def test_a_wait_right_behind_a_store_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """All scoreboards are in use, and the EXIT that the store stands before waits for all of them."""
    image = bytearray(MATMUL.read_bytes())
    cubin = Cubin.from_bytes(bytes(image))
    kernel = cubin.get_kerneldef_by_name("matmul")
    isa = isa_for("sm_90")
    (leave,) = [i for i, text in enumerate(kernel.texts) if "EXIT" in text]
    code = [(f"S2R R{board}, SR_TID.X", Control(2, 1, board, 7, 0, 0)) for board in range(6)]
    code += [
        ("ISETP.NE.AND P0, PT, RZ, RZ, PT", Control(13, 0, 7, 7, 0, 0)),
        ("@P0 EXIT", Control(5, 1, 7, 7, 63, 0)),
    ]
    code += [("NOP", Control(1, 1, 7, 7, 0, 0))] * (leave - len(code)) + [("EXIT", Control(5, 1, 7, 7, 0, 0))]
    start = cubin.elf.section(kernel.section_index).offset
    for index, (text, control) in enumerate(code):
        word = isa.encode(text, control=control, pc=16 * index)
        image[start + 16 * index : start + 16 * index + 16] = word.to_bytes(16, "little")
    seen: list[Caught] = []

    def spy(isa: object, latency: object, rewrite: Rewrite) -> str:
        seen.append(Caught(rewrite, RewriteChecker(isa, latency, rewrite)))  # type: ignore[arg-type]
        return check_rewrite(isa, latency, rewrite)  # type: ignore[arg-type]

    monkeypatch.setattr(rewriter_module, "check_rewrite", spy)
    plan_trace(Cubin.from_bytes(bytes(image)), "matmul", [SassTraceSite(9)], clock="anchor")
    rewrite, view = seen[-1].rewrite, seen[-1].checker.view
    store = next(i for i in seen[-1].checker.new if view.facts(i).text.startswith("@P0 STG.E.EF.128"))
    assert view.stall(store) == seen[-1].checker.latency.signal == 2 and not rewrite.inserted[store + 1]
    words = rewrite.words.copy()
    word = int(words[store, 0]) | int(words[store, 1]) << 64
    word = dataclasses.replace(Control.from_word(word), stall=1).replace_in(word)
    words[store] = word & (1 << 64) - 1, word >> 64
    broken = dataclasses.replace(rewrite, words=words)
    reports = RewriteChecker(isa, seen[-1].checker.latency, broken).run()
    assert {item.kind for item in reports} == {"in-flight"}


def test_a_live_predicate_is_saved_in_a_register(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Surroundings.named
    monkeypatch.setattr(Surroundings, "idle_predicates", lambda self, index: [])
    monkeypatch.setattr(
        Surroundings, "named", lambda self, file: frozenset(range(7)) if file == "P" else named(self, file)
    )
    cubin = Cubin.from_file(MATMUL)
    result = plan_trace(cubin, "matmul", [SassTraceSite(42, warp_level=True)], clock="sm").rewritten
    texts = [text for text in result.sites[1].texts if text != "NOP"]
    assert texts[0].startswith("P2R R") and texts[-1].startswith("R2P PR, R")
    verify(cubin.data, result)


@dataclasses.dataclass
class Caught:
    rewrite: Rewrite
    checker: RewriteChecker

    def kinds(self, change: dict[int, str]) -> set[str]:
        """Kinds of the reports when inserted lines read otherwise."""
        isa, words = self.checker.isa, self.rewrite.words.copy()
        for index, text in change.items():
            control = Control.from_word(int(words[index, 0]) | int(words[index, 1]) << 64)
            word = isa.encode(text, control=control)
            words[index] = word & (1 << 64) - 1, word >> 64
        broken = dataclasses.replace(self.rewrite, words=words)
        return {item.kind for item in RewriteChecker(isa, self.checker.latency, broken).run()}


def _caught(monkeypatch: pytest.MonkeyPatch, path: Path, kernel: str, site: int) -> Caught:
    seen: list[Caught] = []

    def spy(isa: object, latency: object, rewrite: Rewrite) -> str:
        seen.append(Caught(rewrite, RewriteChecker(isa, latency, rewrite)))  # type: ignore[arg-type]
        return check_rewrite(isa, latency, rewrite)  # type: ignore[arg-type]

    monkeypatch.setattr(rewriter_module, "check_rewrite", spy)
    plan_trace(Cubin.from_file(path), kernel, [SassTraceSite(site)], clock="sm")
    return seen[-1]


def test_a_register_that_is_not_put_back_is_caught(monkeypatch: pytest.MonkeyPatch, saving: None) -> None:
    caught = _caught(monkeypatch, MATMUL, "matmul", 60)
    texts = {index: caught.checker.view.facts(index).text for index in caught.checker.new}
    (load,) = [index for index, text in texts.items() if text.startswith("LDL")]
    (save,) = [index for index, text in texts.items() if text.startswith("STL")]
    assert caught.kinds({}) == set()
    assert "clobber" in caught.kinds({load: "NOP"})
    assert "clobber" in caught.kinds({save: texts[save].replace("-0x4", "-0x8")})
    other = "R6" if "R5" in texts[load] else "R5"
    assert "clobber" in caught.kinds({load: texts[load].replace(texts[load].split()[1].strip(","), other)})


def test_a_value_that_does_not_arrive_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Cubin.from_file(PRESSURE).get_kerneldef_by_name("full_kernel")
    loop = [i for i, text in enumerate(kernel.texts) if "FFMA" in text]
    caught = _caught(monkeypatch, PRESSURE, "full_kernel", loop[len(loop) // 2])
    moves = [
        index
        for index in caught.checker.new
        if index > caught.rewrite.entry and caught.checker.view.facts(index).text.startswith("MOV R")
    ]
    assert moves and caught.kinds({}) == set()
    for index in moves:
        assert caught.kinds({index: "NOP"}) & {"stale", "clobber"}, index


def test_predicates_packed_into_a_register_are_read_and_unpacked_ones_written() -> None:
    isa = isa_for("sm_90")
    words = [isa.encode(text) for text in ("P2R R0, PR, RZ, 0x7f", "R2P PR, R0, 0x4", "P2R R3, PR, R4, 0x3")]
    view = CodeView(isa, np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64))
    masks = view.masks("P")
    assert (masks.reads, masks.writes, masks.kills) == ([0x7F, 0, 3], [0, 4, 0], [0, 4, 0])
    assert view.named("P") == set(range(7)) and view.writers("P", 2).tolist() == [1]


def test_a_branch_back_to_the_first_instruction_skips_the_entry() -> None:
    """The kernel loops over instruction 0: entry code runs once, a site there in every trip."""
    image = bytearray(MATMUL.read_bytes())
    cubin = Cubin.from_bytes(bytes(image))
    kernel = cubin.get_kerneldef_by_name("matmul")
    isa = cubin_isa = isa_for("sm_90")
    assert cubin_isa is isa
    count = len(kernel.words)
    (leave,) = [i for i, text in enumerate(kernel.texts) if "EXIT" in text]
    texts = ["IADD3 R0, R0, 0x1, RZ", "ISETP.LT.AND P0, PT, R0, 0x9, PT", "@P0 BRA 0x0"]
    code = [*texts, *["NOP"] * (leave - 3), "EXIT"]
    section = cubin.elf.section(kernel.section_index)
    for index, text in enumerate(code):
        stall = 15 if "ISETP" in text else 5
        word = isa.encode(text, control=Control(stall, int(stall < 12), 7, 7, 0, 0), pc=16 * index)
        image[section.offset + 16 * index : section.offset + 16 * index + 16] = word.to_bytes(16, "little")
    looped = Cubin.from_bytes(bytes(image))
    rewriter = Rewriter(looped, "matmul")
    rewriter.reserve("n")
    rewriter.insert("entry", Snippet("MOV %n, RZ", state=("n",)))
    rewriter.insert(0, Snippet("IADD3 %n, %n, 0x1, RZ", state=("n",)))
    result = rewriter.apply()
    entry, site = result.sites
    assert (entry.first, site.first) == (0, entry.count)
    branch = int(result.place_map[2])
    assert (
        isa.decode(int(result.words[branch, 0]) | int(result.words[branch, 1]) << 64, pc=16 * branch).target
        == 16 * site.first
    )
    assert count == len(result.place_map)
    verify(bytes(image), result)


def test_registers_whose_first_write_is_guarded_may_be_lent_before_it() -> None:
    """Where the guard of a first write is false, the kernel has nothing there to read either."""
    cubin = Cubin.from_file(GUARDED)
    kernel = cubin.get_kerneldef_by_name("guarded")
    first = next(i for i, item in enumerate(kernel.list_instructions) if "@!P0 S2R" in item.str(flatten=True))
    assert first < 10, "the cubin no longer starts with a guarded write"
    for index in (0, first, first + 1, first + 4, len(kernel.list_instructions) // 2):
        for level in (False, True):
            for clock in ("sm", "anchor"):
                plan = plan_trace(cubin, kernel, [SassTraceSite(index, warp_level=level)], clock=clock)
                assert plan.rewritten.registers_after >= plan.rewritten.registers_before
    verify(GUARDED.read_bytes(), plan.rewritten)


def test_what_a_register_held_on_a_way_on_which_the_kernel_never_wrote_it_is_nobodys() -> None:
    key, own = ("R", 3), ("R", 200)
    lent = State({key: ".scratch"})
    written = State(defined={key})
    assert not written.copy().merge(lent, set())
    joined = lent.copy()
    joined.merge(written, set())
    assert key not in joined.values and key in joined.defined
    overwritten = State({key: ".scratch"}, defined={key})
    for first, second in ((overwritten, written), (written, overwritten), (joined, overwritten)):
        state = first.copy()
        state.merge(second, set())
        assert state.values[key] == MIXED
    mine = State({own: "off"})
    mine.merge(State(), {own})
    assert mine.values[own] == MIXED, "a value of inserted code has to come on every way"


def test_a_load_without_scoreboard_has_landed_once_a_later_one_of_its_unit_was_waited_for() -> None:
    """The sites of the matmul example: R7 comes from an LDS.128 that takes no scoreboard, and inserted code before it
    borrows R7."""
    cubin = Cubin.from_file(MATMUL)
    kernel = cubin.get_kerneldef_by_name("matmul")
    texts = [item.str(flatten=True) for item in kernel.list_instructions]
    rows = kernel.map_address_to_line
    product = [i for i in range(len(texts)) if (rows.get(16 * i) or (None, None))[1] == 29]
    load, match = next((i, m) for i, text in enumerate(texts) if (m := re.search(r"LDG.*\[R(\d+)\.64", text)))
    sites = [
        SassTraceSite(product[0]),
        SassTraceSite(product[-1], value_reg=7),
        SassTraceSite(load, value_reg=int(match[1]), value_width_bits=64),
        SassTraceSite(
            next(i for i, text in enumerate(texts) if "UIADD3" in text and "0x10" in text), warp_level=True
        ),
    ]
    assert " R7, " in texts[product[-1]]
    verify(MATMUL.read_bytes(), plan_trace(cubin, kernel, sites, clock="gpu").rewritten)


def test_a_plan_that_is_not_proved_is_left_for_the_next_and_never_hidden() -> None:
    tried: list[Effort] = []

    def attempt(recorder: builtin.Recorder, effort: Effort) -> Rewritten:
        tried.append(effort)
        if effort is proved:
            return done
        raise HazardError("hazard", f"effort {effort.name}")

    done, recorder = object.__new__(Rewritten), object.__new__(builtin.Recorder)
    proved: Effort | None = Effort.RAISE
    assert trace_module._first_that_fits(attempt, [recorder]) == (recorder, done)
    assert tried == [Effort.FREE, Effort.RAISE]
    proved = None
    with pytest.raises(HazardError, match="effort FREE"):
        trace_module._first_that_fits(attempt, [recorder])
