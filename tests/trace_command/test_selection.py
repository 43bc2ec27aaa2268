"""Which launches are chosen, on recorded launch lists; what counts as an autotuner; who launched."""

from __future__ import annotations

import pytest

from gwatch.cuda.program.callers import Callers, is_trial, origin_of
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.selection import MOST_KERNELS, MOST_LAUNCHES, MOST_SHAPES, Selector


def chosen(launches: list[tuple[str, object, bool]], **options: object) -> tuple[list[int], Selector]:
    """Places in the list of (kernel, shape, tuning) that are traced."""
    selector = Selector(ProgramOptions("", **options))  # type: ignore[arg-type]
    found = []
    for place, (symbol, shape, tuning) in enumerate(launches):
        ordinal = selector.choose(symbol, shape, tuning)
        if ordinal:
            selector.took(symbol, ordinal, place)
            found.append(place)
    return found, selector


def test_the_third_launch_of_the_first_shape_that_comes_so_far_is_the_best() -> None:
    launches = [("k", "a", False), ("k", "b", False), ("k", "a", False), ("k", "b", False), ("k", "b", False)]
    found, selector = chosen([*launches, ("k", "a", False), ("k", "b", False)])
    assert found == [0, 1, 2, 3, 4] and selector.best("k") == (True, 4)


def test_the_last_traced_launch_is_the_best_where_no_shape_comes_three_times() -> None:
    found, selector = chosen([("k", "a", False), ("k", "b", False), ("k", "a", False)])
    assert found == [0, 1, 2] and selector.best("k") == (False, 2)


def test_an_autotuners_launches_are_neither_chosen_nor_counted() -> None:
    launches = [("k", "a", True)] * 50 + [("k", "a", False)] * 4
    found, selector = chosen(launches)
    assert found == [50, 51, 52] and selector.best("k") == (True, 52)
    assert selector.left_alone["k"] == 50 and selector.launches("k") == 4


def test_a_numbered_launch_counts_the_kernels_launches_outside_autotuning() -> None:
    launches = [
        ("k", "a", False),
        ("k", "a", True),
        ("other", "a", False),
        ("k", "c", False),
        ("k", "a", False),
    ]
    assert chosen(launches, launch=1)[0] == [3]
    assert chosen(launches, skip=1)[0] == [3, 4]
    assert chosen(launches, count=1)[0] == [0, 2]


def test_a_range_without_an_end_stops_at_the_limit() -> None:
    assert len(chosen([("k", "a", False)] * (MOST_LAUNCHES + 10), skip=0)[0]) == MOST_LAUNCHES


def test_many_kernels_and_shapes_have_limits_that_are_told() -> None:
    found, selector = chosen([(f"k{i}", "a", False) for i in range(MOST_KERNELS + 2)])
    assert len(found) == MOST_KERNELS
    assert selector.over_limit == {f"k{MOST_KERNELS}", f"k{MOST_KERNELS + 1}"}
    assert selector.settled(f"k{MOST_KERNELS}") and not selector.settled("k0")
    assert (
        len(chosen([(f"k{i}", "a", False) for i in range(MOST_KERNELS + 2)], all_kernels=True)[0])
        > MOST_KERNELS
    )
    found, _ = chosen([("k", i, False) for i in range(MOST_SHAPES + 5)])
    assert len(found) == MOST_SHAPES


def test_a_pattern_is_searched_in_both_spellings() -> None:
    selector = Selector(ProgramOptions("", kernel=r"^_Z4|copy<float"))
    assert selector.wants("_Z4axpyPf", "axpy(float*)")
    assert selector.wants("_Z9copyIfEvPT_", "void copy<float>(float*)")
    assert not selector.wants("_Z9copyIiEvPT_", "void copy<int>(int*)")


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("triton.runtime.autotuner", "_bench"),
        ("triton.runtime.autotuner", "benchmark"),
        ("torch._inductor.runtime.triton_heuristics", "benchmark_all_configs"),
        ("torch._inductor.runtime.triton_heuristics", "bench"),
        ("torch._inductor.runtime.coordinate_descent_tuner", "autotune"),
        ("torch._inductor.select_algorithm", "benchmark_choices"),
        ("torch._inductor.fx_passes.pad_mm", "should_pad_bench"),
        ("flashinfer.autotuner", "_profile_single_kernel"),
        ("tilelang.autotuner.tuner", "profile_program"),
        ("cutlass.cute.testing", "_benchmark_for_autotune"),
    ],
)
def test_frames_of_autotuners_at_work(module: str, function: str) -> None:
    assert is_trial(module, function)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("triton.runtime.autotuner", "run"),  # launches the winner
        ("triton.testing", "do_bench"),  # the user's own benchmark
        ("cutlass.cute.testing", "benchmark"),
        ("torch._inductor.runtime.triton_heuristics", "run"),
        ("__main__", "bench_all"),
        ("my_benchmarks.attention", "bench_flash"),
        ("torch.nn.modules.module", "_call_impl"),
    ],
)
def test_frames_that_are_no_autotuner_at_work(module: str, function: str) -> None:
    assert not is_trial(module, function)


def test_the_calling_threads_frames_are_read() -> None:
    seen = {}
    callers = Callers()
    namespace = {"__name__": "triton.runtime.autotuner", "ask": lambda: seen.update(caller=callers.ask("k"))}
    exec("def _bench():\n    ask()\n\ndef run():\n    ask()", namespace)
    namespace["_bench"]()  # type: ignore[operator]
    assert seen["caller"].tuning and origin_of(seen["caller"].modules, "k") == "Triton"
    assert __name__ in seen["caller"].modules
    namespace["run"]()  # type: ignore[operator]
    assert not seen["caller"].tuning


def test_the_innermost_framework_is_the_origin() -> None:
    assert (
        origin_of(["torch._inductor.runtime.static_cuda_launcher", "torch._dynamo.eval_frame"], "k")
        == "torch.compile"
    )
    assert origin_of(["triton.backends.nvidia.driver", "torch.autograd.function"], "k") == "Triton"
    assert origin_of(["cutlass.base_dsl.jit_executor"], "k") == "CuTeDSL"
    assert origin_of(["numba.cuda.dispatcher"], "k") == "numba"
    assert origin_of(["__main__"], "_ZN2at6native13reduce_kernelEv") == "torch"
    assert origin_of(["__main__"], "cupy_add__float_float") == "CuPy"
    assert origin_of(["cupyx.something"], "mine") == "CuPy"
    assert origin_of(["cudf.core"], "k") != "cuda-python"


def tried(shapes: list[str], fitting: str) -> tuple[list[int], Selector]:
    """Places in the list of shapes that are traced where launches of the others cannot be."""
    selector, found = Selector(ProgramOptions("")), []
    for place, shape in enumerate(shapes):
        ordinal = selector.choose("k", shape, False)
        if ordinal and shape == fitting:
            selector.took("k", ordinal, place)
            found.append(place)
    return found, selector


def test_launches_that_cannot_be_traced_settle_nothing() -> None:
    found, selector = tried(["a", "a", "a", "a", "b", "b", "b", "b"], "b")
    assert found == [4, 5, 6] and selector.best("k") == (True, 6) and selector.settled("k")
    found, selector = tried(["a", "a", "a", "b"], "b")
    assert found == [3] and selector.best("k") == (False, 3)
    assert selector.why("k", 1) == "the last that could be traced"


def test_a_later_launch_stands_for_a_third_one_that_was_missed() -> None:
    selector = Selector(ProgramOptions(""))
    ordinals = [selector.choose("k", "a", False) for _ in range(4)]
    assert ordinals == [1, 2, 3, 4]
    selector.took("k", 4, "fourth")
    assert selector.best("k") == (True, "fourth") and selector.choose("k", "a", False) == 0
    assert selector.why("k", 4) == "number 4 of its shape, the first from the third on that was traced"


def test_shapes_beyond_the_first_ones_are_traced_only_when_steady() -> None:
    many = [("k", shape, False) for shape in range(MOST_SHAPES + 20) for _ in range(2)]
    found, selector = chosen(many)
    assert len(found) == 2 * MOST_SHAPES
    assert selector.why("k", 2).startswith(f"the last of the first {MOST_SHAPES} shapes: none of {MOST_SHAPES + 20} ")
    found, selector = chosen([*many, ("k", MOST_SHAPES + 5, False)])
    assert found[-1] == len(many) and selector.best("k") == (True, len(many))


def test_launches_asked_for_beyond_the_limit_are_counted() -> None:
    found, selector = chosen([("k", "a", False)] * (MOST_LAUNCHES + 30), skip=5, count=MOST_LAUNCHES + 10)
    assert found == list(range(5, MOST_LAUNCHES + 5)) and selector.cut_off == {"k": 10}
    assert not chosen([("k", "a", False)] * 30, launch=3)[1].cut_off


def test_the_reason_for_the_launch_is_true() -> None:
    assert chosen([("k", "a", False)] * 3)[1].why("k", 3) == "the third of its shape"
    assert chosen([("k", "a", False)])[1].why("k", 1) == "the last seen: no shape was launched three times"
    assert chosen([("k", "a", False)], launch=0)[1].why("k", 1) == "as asked for"
