"""do_trace from end to end without a GPU: a fake driver runs "patched" code that a ring model stands in for."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "xtrace"))

from fakecupti import FakeCupti, launch_arguments
from fakes import FakeDriver, packed
from ringsim import Clocks, Writer, site, site_map

from gwatch.common.format import File
from gwatch.cuda import capture, cupti
from gwatch.cuda.binary.constants import ModuleObject, add_note, read_note
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.driver import BINARY_VERSION, MAX_DYNAMIC_SHARED, MAX_THREADS, NUM_REGS
from gwatch.cuda.trace import do_trace as do_trace_by_the_old_path
from gwatch.cuda.xtrace import SassTraceSite, capture_cubin, capture_kernel, do_trace, prepare
from gwatch.cuda.xtrace import trace as trace_module
from gwatch.cuda.xtrace.format import Section_IntraKernelTrace
from gwatch.errors import KernelError, SiteError, TraceError, UnsupportedError
from gwatch.rewrite.ring import DESCRIPTOR_DTYPE, RecordKind, RingFormat, RingLayout

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/cuda/trace/matmul_sm90.cubin"
REGISTERS = Cubin.from_file(EXAMPLE).get_kerneldef_by_name("matmul").register_count
SITES = [SassTraceSite(10), SassTraceSite(20)]


class Machine:
    """A driver, a CUPTI and one loaded module whose kernel ``matmul`` a test launches."""

    def __init__(self) -> None:
        self.driver, self.cupti = FakeDriver(), FakeCupti()
        self.hooks = capture.Hooks()
        self.image = EXAMPLE.read_bytes()
        self.module = self.driver.number()
        self.kernels: dict[str, int] = {}
        self.add("matmul", self.module)
        self.output = self.driver.allocate(4096)
        self.driver.zero(self.output, 4096)
        self.layouts: list[RingLayout] = []
        self.ran: list[str] = []
        self.visits = 3
        self.corrupts = False
        self.hooks.images.loaded(self.module, self.image)

    def add(self, name: str, module: int) -> int:
        handle = self.driver.number()
        self.driver.handles[handle] = (False, module, name)
        self.driver.attributes.update(
            {
                (handle, NUM_REGS): REGISTERS,
                (handle, BINARY_VERSION): 90,
                (handle, MAX_DYNAMIC_SHARED): 49152,
                (handle, MAX_THREADS): 1024,
            }
        )
        self.kernels[name] = handle
        return handle

    def launch(
        self,
        name: str = "matmul",
        grid: tuple[int, int, int] = (2, 1, 1),
        block: tuple[int, int, int] = (48, 1, 1),
        stream: int = 0,
        handle: int | None = None,
    ) -> None:
        values = packed(
            *(ctypes.c_uint64(self.output) for _ in range(3)), *(ctypes.c_int(1) for _ in range(3))
        )
        arguments = launch_arguments(
            handle or self.kernels[name], grid, block, stream, ctypes.addressof(values)
        )
        self.cupti.call(
            "cuLaunchKernel",
            arguments,
            name.encode(),
            inside=lambda: self._run(struct.unpack_from("<Q", arguments)[0], grid, block),
        )

    def _run(self, handle: int, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        """What the GPU does: the output is always the same; patched and armed code fills its ring."""
        self.driver.write(self.output, b"\x07" * 4096)
        is_kernel, library, _ = self.driver.handles[handle]
        if not is_kernel or library not in self.driver.libraries:
            self.ran.append("plain")
            return
        descriptor, _ = self.driver.globals[library, "gwatch_ring_k"]
        armed = np.frombuffer(self.driver.read(descriptor, 64), DESCRIPTOR_DTYPE)[0]
        if not armed["ring"]:
            self.ran.append("unarmed")
            return
        self.ran.append("traced")
        if self.corrupts:
            self.driver.write(self.output + 8, b"\x66")
        layout = RingLayout(FORMAT, grid, block, int(armed["cta_slots"]))
        self.layouts.append(layout)
        chosen = range(layout.ctas)
        if armed["table"]:
            table = np.frombuffer(self.driver.read(int(armed["table"]), 4 * layout.ctas), "<i4")
            chosen = [int(np.flatnonzero(table == slot)[0]) for slot in range(layout.cta_slots)]
        writer = Writer(layout, MAP, Clocks())
        for slot, cta in enumerate(chosen):
            writer.enter(slot, cta, sm=cta % 4, t=100.0)
            for warp in range(layout.warps_per_cta):
                lanes = range(min(32, layout.threads_per_cta - 32 * warp))
                for visit in range(self.visits):
                    writer.visit(slot * layout.warps_per_cta + warp, lanes, visit % 2, 300.0 + 64 * visit)
        assert not any(self.driver.read(int(armed["ring"]), layout.data_bytes)), "the ring was not zeroed"
        self.driver.write(int(armed["ring"]), bytes(writer.data))


FORMAT = RingFormat(RecordKind.NARROW, 4)
MAP = site_map("gpu", FORMAT, [site(0), site(1)])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    fake = machine.driver

    def load(image: bytes) -> int:
        library = FakeDriver.load_library(fake, image)
        if image.startswith(b"\x7fELF"):  # not the PTX of the spin kernel
            address = fake.allocate(64)
            fake.zero(address, 64)
            fake.globals[library, "gwatch_ring_k"] = (address, 64)
        return library

    monkeypatch.setattr(fake, "load_library", load)
    monkeypatch.setattr(cupti, "load", lambda: machine.cupti)
    monkeypatch.setattr(capture, "_DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(trace_module, "driver", lambda: fake)
    monkeypatch.setattr(trace_module, "hooks", machine.hooks)
    plans: list[dict[str, Any]] = []

    def plan(cubin: Any, kernel: Any, sites: Any, **options: Any) -> Any:
        plans.append({"kernel": kernel.name, "sites": sites, **options})
        return SimpleNamespace(data=add_note(cubin.data, ".note.patched", b"x"), site_map=MAP)

    monkeypatch.setattr(prepare, "plan_trace", plan)
    machine.plans = plans  # type: ignore[attr-defined]
    return machine


def trace(machine: Machine, fn: Callable[[], Any] | None = None, **options: Any) -> Any:
    options = {
        "kernel_name_pattern": "matmul",
        "instrumentation_tier": "sass",
        "sass_trace_sites": SITES,
        **options,
    }
    return do_trace(fn or machine.launch, **options)


def left_clean(machine: Machine) -> bool:
    """Hooks off, every descriptor unarmed, rings freed (the output and the descriptors stay)."""
    found = machine.driver.globals.items()
    descriptors = [address for (_, name), (address, _) in found if name == "gwatch_ring_k"]
    unarmed = all(machine.driver.read(address, 8) == bytes(8) for address in descriptors)
    leftover = set(machine.driver.memory) - set(descriptors) - {machine.output}
    return unarmed and not leftover and not machine.cupti.subscribed and not machine.hooks.installed


def test_fn_runs_once_to_look_and_then_plain_and_traced_by_turns(machine: Machine) -> None:
    trace(machine)
    assert machine.ran == ["plain"] + ["plain", "traced"] * 5
    machine.ran.clear()
    trace(machine, passes=1)
    assert machine.ran == ["plain", "plain", "traced"]
    assert left_clean(machine)


def test_the_result_has_the_classic_keys_and_records(machine: Machine) -> None:
    result = trace(machine, lambda: machine.launch(grid=(2, 3, 1)))
    assert (result["grid_dim"], result["block_dim"]) == ((2, 3, 1), (48, 1, 1))
    assert result["kernel_prototype"] == "matmul" and result["oe_results"] == {}
    assert result["compile_results"] == {
        "instrumentation_level": "sass",
        "clock_type": "gpu",
        "record_shape": "site",
        "record_granularity": "thread",
        "origin_reg_used [avg]": 16,
        "trace_reg_used [avg]": 24,
    }
    assert len(result.records) == 6 * 48 * 3
    rows = result["trace_results"]
    assert len(rows) == 6 * 48 * 3 and set(rows[0]) == {"global_tid", "site_id", "value", "timestamp"}
    assert sorted({row["global_tid"] for row in rows}) == list(range(6 * 48))
    assert all(type(value) is int for value in rows[0].values())
    assert result.dropped == 0 and result["visits"].sum() == 6 * 48 * 3
    assert result["outputs"] == "identical" and result["slowdown"]["median"] == 1.0
    assert result.launch["launches"] == 1 and result.launches == [result]


def test_the_dict_is_complete_however_it_is_read(machine: Machine) -> None:
    result = trace(machine, passes=1)
    assert "trace_results" in result and result.get("trace_results") is not None
    assert "trace_results" in dict(trace(machine, passes=1))
    assert "trace_results" in list(trace(machine, passes=1).keys())
    with pytest.raises(KeyError):
        result["nothing"]
    with pytest.raises(AttributeError):
        _ = result.nothing


def test_a_trace_does_not_take_gwatchs_own_images_for_the_originals(machine: Machine) -> None:
    # Loaded before the hooks: neither the handle nor the load is known, so the image is searched by name.
    store = machine.hooks.images
    store.forget(machine.module)
    store.seen(machine.image)
    trace(machine, passes=1)
    patched = max(machine.driver.libraries.values(), key=len)
    assert patched != machine.image
    store.seen(patched)  # what MODULE_LOADED says when gwatch loads its patched image
    other = machine.add("matmul", machine.driver.number())
    assert len(trace(machine, lambda: machine.launch(handle=other), passes=1).records) == 2 * 48 * 3


def test_one_pass_is_compared_with_the_first_one(machine: Machine) -> None:
    machine.driver.layout = [(8 * i, 8) for i in range(3)] + [(24 + 4 * i, 4) for i in range(3)]
    assert trace(machine, passes=1)["outputs"] == "identical"
    machine.corrupts = True
    result = trace(machine, passes=1)
    assert result["outputs"] == "differ" and "memory of parameter 0: 1 of 4096" in result["outputs_detail"][0]


def test_both_import_paths_are_one_function() -> None:
    assert do_trace_by_the_old_path is do_trace


def test_launches_of_one_pass_are_kept_apart(machine: Machine) -> None:
    def fn() -> None:
        machine.launch(grid=(2, 1, 1), stream=1)
        machine.launch(grid=(5, 1, 1), stream=2)
        machine.launch(grid=(2, 1, 1), stream=1)

    result = trace(machine, fn, passes=1)
    assert [len(one.records) for one in result.launches] == [2 * 48 * 3, 5 * 48 * 3, 2 * 48 * 3]
    assert [one["grid_dim"] for one in result.launches] == [(2, 1, 1), (5, 1, 1), (2, 1, 1)]
    assert left_clean(machine)


def test_launches_beyond_the_limit_run_plain_and_are_counted(machine: Machine) -> None:
    result = trace(machine, lambda: [machine.launch() for _ in range(5)], max_launches=2, passes=1)
    assert machine.ran[-5:] == ["traced", "traced", "plain", "plain", "plain"]
    assert len(result.launches) == 2
    assert any("[untraced-launches] 3 more" in warning for warning in result["warnings"])


def test_drops_are_counted_and_said(machine: Machine) -> None:
    machine.visits = 7
    result = trace(machine, passes=1)
    assert result.dropped == 2 * 48 * 3 and len(result.records) == 2 * 48 * 4
    assert any(warning.startswith("[dropped]") for warning in result["warnings"])


def test_a_launch_over_the_budget_samples_whole_ctas_evenly(machine: Machine) -> None:
    chunk = 2 * (FORMAT.chunk_bytes + 64)
    result = trace(
        machine, lambda: machine.launch(grid=(40, 1, 1)), ring_bytes=10 * chunk + 40 * 4 + 256, passes=1
    )
    assert result["sampled"] == {"ctas": 10, "of": 40}
    assert sorted(set(result.records["block"][:, 0].tolist())) == list(range(0, 40, 4))
    assert any(warning.startswith("[sampled] 10 of 40") for warning in result["warnings"])


def test_named_ctas_are_the_ones_recorded(machine: Machine) -> None:
    result = trace(machine, lambda: machine.launch(grid=(4, 3, 2)), cta=[(3, 2, 1), (0, 1, 0)], passes=1)
    assert {tuple(block) for block in result.records["block"].tolist()} == {(3, 2, 1), (0, 1, 0)}
    with pytest.raises(TraceError, match=r"\[cta-outside\]"):
        trace(machine, cta=[(9, 0, 0)], passes=1)
    assert left_clean(machine)


def test_wrong_outputs_are_reported(machine: Machine) -> None:
    machine.corrupts = True
    result = trace(machine, passes=2)
    assert result["outputs"] == "differ"
    assert any("1 of 4096 bytes differ from both plain passes" in line for line in result["outputs_detail"])


def test_returned_arrays_are_compared(machine: Machine) -> None:
    counter = iter(range(100))
    result = trace(machine, lambda: (machine.launch(), {"x": np.full(3, next(counter))})[1], passes=2)
    assert result["outputs"] == "nondeterministic"
    assert any(line.startswith("result['x']") for line in result["outputs_detail"])


def test_an_exception_in_fn_comes_through_and_the_process_is_clean(machine: Machine) -> None:
    for when in range(4):
        calls = iter(range(100))

        def fn(calls: Any = calls, when: int = when) -> None:
            machine.launch()
            if next(calls) == when:
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            trace(machine, fn)
        assert left_clean(machine)
    machine.launch()
    assert machine.ran[-1] == "plain"


def test_a_kernel_that_is_not_launched_is_answered_with_the_nearest_names(machine: Machine) -> None:
    machine.add("softmax", machine.module)
    with pytest.raises(KernelError, match=r"\[kernel-not-launched\].*'matmull'.*softmax|matmul"):
        trace(machine, lambda: (machine.launch(), machine.launch("softmax")), kernel_name_pattern="matmull")
    with pytest.raises(KernelError, match=r"\[kernel-not-launched\] fn made no kernel launch.*graph"):
        trace(machine, lambda: None)


def test_several_kernels_are_refused_with_the_list(machine: Machine) -> None:
    machine.add("matmul_small", machine.module)
    with pytest.raises(KernelError, match=r"\[kernel-ambiguous\].*2 kernels: matmul, matmul_small"):
        trace(machine, lambda: (machine.launch(), machine.launch("matmul_small")))


def test_equal_names_with_different_code_need_the_filter(machine: Machine) -> None:
    other = bytearray(machine.image)
    section = 0x10  # any byte of the code will do: find the first instruction of the kernel
    kernel = Cubin.from_bytes(machine.image).get_kerneldef_by_name("matmul")
    other[kernel.section.offset + section] ^= 1
    second_module = machine.driver.number()
    machine.hooks.images.loaded(second_module, bytes(other))
    first = machine.kernels["matmul"]
    second = machine.add("matmul", second_module)

    def fn() -> None:
        machine.launch(handle=first, grid=(2, 1, 1))
        machine.launch(handle=second, grid=(3, 1, 1))

    with pytest.raises(
        KernelError, match=r"\[kernel-ambiguous\] 2 different kernels are named matmul.*launch_filter"
    ):
        trace(machine, fn)
    result = trace(machine, fn, launch_filter=lambda launch: launch.grid == (3, 1, 1), passes=1)
    assert result["grid_dim"] == (3, 1, 1) and machine.ran[-2:] == ["plain", "traced"]


def test_the_code_of_a_launched_kernel_can_be_had(machine: Machine) -> None:
    cubin, kernel = capture_cubin(machine.launch, "mat")
    assert cubin.data == machine.image and kernel.name == "matmul" and machine.ran == ["plain"]
    assert capture_kernel(machine.launch, "mat").words.tobytes() == kernel.words.tobytes()
    assert left_clean(machine)


def test_launches_that_change_between_passes_are_an_error(machine: Machine) -> None:
    grids = iter([(2, 1, 1)] * 2 + [(3, 1, 1)] * 9)
    with pytest.raises(TraceError, match=r"\[launch-changed\]"):
        trace(machine, lambda: machine.launch(grid=next(grids)))
    assert left_clean(machine)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_module_loaded_anew_in_every_pass_is_fine_only_without_variables(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, stateful: bool
) -> None:
    if stateful:
        variable = ModuleObject(1, "counter", ".nv.global", 0, 4, True)
        monkeypatch.setattr(prepare, "globals_reached", lambda cubin, kernel: [variable])
        monkeypatch.setattr(prepare, "bind_globals", lambda image, addresses: image)
        machine.driver.globals[machine.module, "counter"] = (0x5000, 4)

    def fn() -> None:
        machine.hooks.images.loaded(machine.module, machine.image)  # the handle is handed out again
        machine.launch()

    if not stateful:
        assert len(trace(machine, fn, passes=1).records) == 2 * 48 * 3
        return
    with pytest.raises(TraceError, match=r"\[module-changed\]"):
        trace(machine, fn)
    assert left_clean(machine)
    machine.ran.clear()
    assert len(trace(machine, passes=1).records) == 2 * 48 * 3


def test_constants_are_copied_before_the_launch_and_refused_while_capturing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, size = machine.driver.allocate(256), 24
    machine.driver.write(original, bytes(range(256)))
    variables = [ModuleObject(1, "gain", ".nv.constant3", 8, 16, True)]
    monkeypatch.setattr(prepare, "globals_reached", lambda cubin, kernel: variables)
    monkeypatch.setattr(prepare.KernelDef, "texts", ("MOV R1, c[0x3][0x8]",))
    machine.driver.globals[machine.module, "gain"] = (original + 8, 16)
    copies: list[tuple[int, int, int, int]] = []
    monkeypatch.setattr(machine.driver, "copy_async", lambda *a: copies.append(a))
    trace(machine, lambda: machine.launch(stream=5), passes=2)
    assert [(source, count, stream) for _, source, count, stream in copies] == [(original, size, 5)] * 2
    machine.driver.capturing.add(5)
    with pytest.raises(TraceError, match=r"\[constant-in-capture\]"):
        trace(machine, lambda: machine.launch(stream=5))
    machine.driver.free(original)
    assert left_clean(machine)


def test_a_variable_without_an_address_is_refused_by_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = [ModuleObject(1, "hidden", ".nv.global", 0, 4, True)]
    monkeypatch.setattr(prepare, "globals_reached", lambda cubin, kernel: variables)
    with pytest.raises(TraceError, match=r"\[variable-hidden\] matmul uses the variable hidden"):
        trace(machine)
    assert left_clean(machine)


def test_a_site_that_is_never_reached_is_an_error_that_says_so(machine: Machine) -> None:
    machine.visits = 0
    with pytest.raises(TraceError, match=r"\[no-records\] 4 warps ran the patched code of matmul"):
        trace(machine)
    assert left_clean(machine)


def test_a_captured_launch_is_traced_but_not_timed(machine: Machine) -> None:
    machine.driver.capturing.add(9)
    result = trace(machine, lambda: machine.launch(stream=9), passes=2)
    assert result["slowdown"] is None and result["cost_per_record"] is None
    assert result.launch["graph"] is True and len(result.records) == 2 * 48 * 3


def test_the_plan_is_asked_for_what_the_caller_said(machine: Machine) -> None:
    trace(
        machine,
        passes=1,
        clock_type="anchor",
        sass_per_thread_records=100,
        keep="first",
        sass_excluded_registers={"general": [252, 253]},
        sass_arch="90",
    )
    (plan,) = machine.plans  # type: ignore[attr-defined]
    assert plan["sites"] == tuple(SITES) and plan["clock"] == "anchor" and plan["keep"] == "first"
    assert plan["depth"] == 100 and plan["excluded_registers"] == {"general": (252, 253)}
    assert plan["duration_ns"] == pytest.approx(10_000.0)


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"kernel_name_pattern": ""}, KernelError, "kernel-pattern"),
        ({"kernel_name_pattern": "("}, KernelError, "kernel-pattern"),
        ({"instrumentation_tier": "ptx"}, UnsupportedError, "ptx-sites"),
        ({"instrumentation_tier": "sas"}, TraceError, "tier-unknown"),
        ({"ptx_warp_level": True}, SiteError, "scope-names"),
        ({"scope_name_map": {1: "load"}}, SiteError, "scope-names"),
        ({"scope_name_map": {5000: "load"}, "sass_trace_sites": None}, SiteError, "scope-id"),
        ({"sass_trace_sites": None}, SiteError, "no-markers"),
        ({"ptx_site_pass": lambda kernel: []}, UnsupportedError, "argument-unsupported"),
        ({"profile_context": object()}, UnsupportedError, "argument-unsupported"),
        ({"clock_type": "gpus"}, TraceError, "clock-unknown"),
        ({"sass_trace_sites": []}, TraceError, "sites-missing"),
        ({"sass_splice_mode": "split"}, UnsupportedError, "splice-split"),
        ({"sass_splice_mode": "best"}, TraceError, "option-unknown"),
        ({"sass_schedule_mode": "fast"}, TraceError, "option-unknown"),
        ({"sass_per_thread_records": -1}, TraceError, "option-range"),
        ({"sass_per_thread_records": "32"}, TraceError, "option-range"),
        ({"sass_per_thread_records": 2.5}, TraceError, "option-range"),
        ({"sass_excluded_registers": {"gpr": [1]}}, TraceError, "option-unknown"),
        ({"passes": 0}, TraceError, "option-range"),
        ({"keep": "oldest"}, TraceError, "option-unknown"),
        ({"profile_stream": "stream"}, TraceError, "option-type"),
        ({"sass_arch": "100a"}, UnsupportedError, "arch-mismatch"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    machine: Machine, options: dict[str, Any], error: type[Exception], code: str
) -> None:
    with pytest.raises(error, match=rf"\[{code}\]"):
        trace(machine, **options)
    assert left_clean(machine)


def test_a_bad_site_is_refused_when_it_is_made() -> None:
    with pytest.raises(SiteError):
        SassTraceSite(-1)


def test_the_patched_image_can_be_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GWATCH_TRACE_KEEP_CUBIN", str(tmp_path / "kept.cubin"))
    trace(machine, passes=1)
    kept = (tmp_path / "kept.cubin").read_bytes()
    assert read_note(kept, ".note.patched") == b"x" and read_note(machine.image, ".note.patched") is None


def test_a_result_goes_into_a_report(machine: Machine, tmp_path: Path) -> None:
    result = trace(machine, passes=2)
    section = Section_IntraKernelTrace()
    section.add_run(result, site_regions=[(0, 1, "body")], scope_roles={"body": "Math"})
    report = File(title="trace")
    report.add_section(section)
    report.render(str(tmp_path / "trace.json"))
    report.render(str(tmp_path / "trace.html"))
    data = json.loads((tmp_path / "trace.json").read_text())
    (run,) = data["sections"][1]["data"]["runs"]
    assert run["kernel_prototype"] == "matmul" and run["analysis"]["grid_dim"] == [2, 1, 1]
    (region,) = run["analysis"]["region_stats"]
    assert region["label"] == "body" and region["intervals"] == 2 * 48
    assert len(run["trace_results"]) == len(result.records)
    assert "matmul" in (tmp_path / "trace.html").read_text()
