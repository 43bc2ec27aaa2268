"""The cause of every narrow access is the one the kernel was written (or compiled) to have."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
from inspect_support import COPY_CUBIN, COPY_NAME, DIVISIBLE, FIXTURES, TRITON, WRAPPER, host_elf, make_pt2

from gwatch.inspect.artifacts import Image, Text, open_artifact
from gwatch.inspect.executors import open_executor
from gwatch.inspect.report import load_schema
from gwatch.inspect.run import Request, inspect
from gwatch.inspect.triton_source import Argument, TritonKernels
from gwatch.inspect.vectorize import GlobalAccess, Vectorization, vectorization
from gwatch.inspect.view import CubinView
from gwatch.sass.asm import assemble

LOOK = Request(vectorization=True)

# Kernel of narrow.cu -> (cause, argument) of its narrow loads; None: it has none.
LOADS = {
    "wide": None,
    "divisibility": ("divisibility", "argument 0"),
    "divisibility_half": ("divisibility", "argument 0"),
    "mask": ("mask", "argument 0"),
    "stride": ("stride", "argument 2"),
    "stride_rows": ("stride", "argument 0"),
    "dtype": ("dtype", "argument 0"),
    "tail": ("tail", "argument 0"),
    "offset": ("offset", ""),
    "gather": ("gather", ""),
}
# Kernel of causes.cu -> causes of its narrow loads, and of its narrow stores, with the argument to blame.
PLAIN = {("dtype", "argument 1")}
KNOWN: dict[str, tuple[set[tuple[str, str]], set[tuple[str, str]]]] = {
    "alias": ({("alias", "argument 0")}, {("stride", "argument 2")}),
    "alias_atomic": ({("alias", "argument 0")}, set()),
    "alias_stores": ({("stride", "argument 2")}, {("alias", "argument 1")}),
    "barrier": ({("barrier", "argument 0")}, set()),
    "barrier_fence": ({("barrier", "argument 0")}, set()),
    "divisibility_gathered": ({("dtype", "argument 1"), ("divisibility", "argument 0")}, set()),
    "divisibility_number": ({("divisibility", "argument 2")}, set()),
    "divisibility_rows": ({("dtype", "argument 0"), ("divisibility", "")}, set()),
    "divisibility_unrolled": ({("divisibility", "argument 0"), ("tail", "argument 0")}, PLAIN),
    "dtype_bias": ({("dtype", "argument 0")}, PLAIN),
    "dtype_nested": ({("dtype", "argument 0")}, PLAIN),
    "dtype_branches": ({("dtype", "argument 0")}, PLAIN),
    "dtype_bytes": ({("dtype", "argument 0")}, PLAIN),
    "dtype_grid": ({("dtype", "argument 0")}, PLAIN),
    "dtype_rows": ({("dtype", "argument 0"), ("dtype", "")}, PLAIN),
    "dtype_triple": ({("dtype", "argument 0")}, PLAIN),
    "dtype_uniform": ({("dtype", "argument 0")}, PLAIN),
    "gather_pointers": ({("dtype", "argument 0"), ("gather", "")}, PLAIN),
    "gather_queue": ({("gather", "")}, PLAIN),
    "gather_shared": ({("gather", "")}, PLAIN),
    "loop": ({("loop", "argument 0")}, PLAIN),
    "mask_branches": ({("mask", "argument 0")}, PLAIN),
    "restricted": (set(), {("stride", "argument 2")}),
    "dtype_rows_of_blocks": ({("dtype", "argument 0")}, PLAIN),
    "stride_column": ({("stride", "argument 2")}, PLAIN),
    "stride_column_constant": ({("stride", "argument 0")}, PLAIN),
    "unknown_hint": ({("unknown", "argument 0")}, PLAIN),
    "volatile_hint": ({("volatile", "argument 0")}, PLAIN),
    "stride_constant": ({("stride", "argument 0")}, PLAIN),
    "stride_five": ({("stride", "argument 0")}, PLAIN),
    "stride_loop": ({("stride", "argument 2")}, PLAIN),
    "stride_member": ({("stride", "argument 2+0x8")}, PLAIN),
    "stride_places": ({("stride", "argument 2")}, PLAIN),
    "stride_rows_unrolled": ({("stride", "argument 2"), ("tail", "argument 0")}, PLAIN),
    "stride_threads": ({("stride", "argument 2")}, PLAIN),
    "stride_threads_long": ({("stride", "argument 2")}, PLAIN),
    "stride_unrolled": ({("stride", "argument 0"), ("dtype", "argument 0")}, PLAIN),
    "tail_row": ({("divisibility", "argument 0"), ("tail", "argument 0")}, PLAIN),
    "tail_loops": ({("tail", "argument 0")}, {("tail", "argument 1")}),
    "unknown_atomic": ({("unknown", "argument 0")}, set()),
    "volatile_loads": ({("volatile", "argument 0")}, PLAIN),
    "volatile_stores": (set(), {("volatile", "argument 1")}),
    "wrap": ({("wrap", "argument 0")}, PLAIN),
}
# Kernel of carried.cu -> causes of its narrow loads; what a loop carries round is what its name says.
CARRIED = {
    "chase_find": {"dtype", "chase"},
    "chase_index": {"chase"},
    "chase_index_unrolled": {"chase"},
    "chase_list": {"dtype", "chase"},
    "chase_pure": {"chase"},
    "chase_records": {"chase"},
    "chase_tree": {"dtype", "chase"},
    "chase_uniform": {"chase"},
    "chase_values": {"chase"},
    "chase_wide": {"chase"},
    "dtype_probe": {"dtype"},
    "gather_ahead": {"dtype", "gather"},
    "gather_carried": {"loop", "gather"},
    "gather_found": {"dtype", "chase"},
    "gather_loop": {"dtype", "gather"},
    "gather_queue": {"gather"},
    "gather_uniform": {"loop", "gather"},
    "loop_carried": {"loop"},
    "loop_rows": {"dtype", "loop"},
    "stride_carried": {"stride"},
    "stride_carried_far": {"stride"},
}
# Triton kernel -> cause and argument of narrow loads and of narrow stores, as compiled with the alignment in its .ttir.
TRITON_CAUSES = {
    "aligned": (None, None),
    "rowstride_ok": (None, None),
    "in_unaligned": (("divisibility", "i"), None),
    "out_unaligned": (None, ("divisibility", "o")),
    "half_none": (("divisibility", "i"), ("divisibility", "o")),
    "mask": (("mask", "n"), ("mask", "n")),
    "stride": (("stride", "s"), None),
    "rowstride": (("divisibility", "s"), ("divisibility", "s")),
    "offset": (("offset", ""), None),
    "dtype_small": (("dtype", "i"), ("dtype", "o")),
    "block_small": (("dtype", "i"), ("dtype", "o")),
    "gather": (("gather", ""), None),
}


def causes(accesses: tuple[GlobalAccess, ...], action: str) -> set[tuple[str, str]]:
    return {(a.cause.name, a.cause.argument) for a in accesses if a.cause is not None and a.action == action}


def expected(cause: tuple[str, str] | None) -> set[tuple[str, str]]:
    return set() if cause is None else {cause}


@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_known_causes_from_bare_cubins(arch: str) -> None:
    view = CubinView.of((FIXTURES / f"narrow_sm_{arch}.cubin").read_bytes())
    found = {kernel.name: vectorization(view, kernel).accesses for kernel in view.kernels}
    assert {name: causes(a, "load") for name, a in found.items()} == {
        k: expected(v) for k, v in LOADS.items()
    }
    for name in ("divisibility", "mask", "dtype", "tail"):
        assert causes(found[name], "store") == {(LOADS[name][0], "argument 1")}
    for name in ("wide", "stride", "offset", "gather"):
        assert causes(found[name], "store") == set()


@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_each_cause_is_told_from_those_it_is_mistaken_for(arch: str) -> None:
    view = CubinView.of((FIXTURES / f"causes_sm_{arch}.cubin").read_bytes())
    found = {kernel.name: vectorization(view, kernel).accesses for kernel in view.kernels}
    assert {name: (causes(a, "load"), causes(a, "store")) for name, a in found.items()} == KNOWN


@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_what_a_loop_carries_round_is_told_from_what_it_reads_anew(arch: str) -> None:
    view = CubinView.of((FIXTURES / f"carried_sm_{arch}.cubin").read_bytes())
    found = {kernel.name: vectorization(view, kernel).accesses for kernel in view.kernels}
    # There each child of a node is loaded in a branch of its own.
    branched = {"chase_tree": {"dtype", "chase", "mask"}} if arch == "120" else {}
    assert {name: {cause for cause, _ in causes(a, "load")} for name, a in found.items()} == CARRIED | branched
    # What was found at the end of a chase is a place like any other.
    assert causes(found.pop("gather_found"), "store") == {("gather", "")}
    assert {cause for a in found.values() for cause in causes(a, "store")} == {
        ("dtype", f"argument {n}") for n in (1, 2)
    }


@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_no_merge_is_named_that_no_access_could_be(arch: str) -> None:
    said = set()
    for stem in ("causes", "narrow", "carried"):
        path = FIXTURES / f"{stem}_sm_{arch}.cubin"
        if path.is_file():
            view = CubinView.of(path.read_bytes())
            for kernel in view.kernels:
                for access in vectorization(view, kernel).accesses:
                    said.update(re.findall(r"could be one of (\d+) bits", access.cause.text if access.cause else ""))
                    assert access.cause is None or " 0x0 bytes apart" not in access.cause.text
    assert said <= {"16", "32", "64", "128"}
    assert said


def test_the_report_follows_its_schema_whatever_the_causes() -> None:
    data = inspect([FIXTURES / "causes_sm_90.cubin"], LOOK).to_json()
    jsonschema.validate(data, load_schema())
    accesses = [a for kernel in data["images"][0]["kernels"] for a in kernel["vectorization"]["accesses"]]
    said = {access["cause"]["name"] for access in accesses if access["cause"]}
    assert said >= {name for loads, stores in KNOWN.values() for name, _ in loads | stores}


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("alias", ["STG.E at 0x", "may write the same memory", "__restrict__"]),
        ("alias_stores", ["LDG.E at 0x", "may read or write the same memory"]),
        ("barrier", ["BAR.SYNC", "stands between them"]),
        ("barrier_fence", ["MEMBAR", "stands between them"]),
        ("volatile_loads", ["LDG.E.STRONG.SYS", "never merged"]),
        ("stride_rows_unrolled", ["start at a multiple of argument 2, which is known at run time only"]),
        ("stride_constant", ["0x40 bytes apart, each 4 bytes"]),
        ("stride_five", ["neighbouring threads start 20 bytes apart, and one of 128 bits must", "multiple of 16"]),
        ("dtype_triple", ["only 12 bytes in a row there", "start 12 bytes apart, and one of 64 bits must", "of 8"]),
        ("dtype_uniform", ["the same for all threads"]),
        ("chase_list", ["the address comes from what the iteration before read from memory: a pointer chase"]),
        ("chase_wide", ["could be one of 128 bits, but the address comes from what the iteration before read"]),
        ("loop_rows", ["the 4 bytes behind the last one's, from a place on that was read from memory"]),
    ],
)
def test_a_cause_says_what_was_seen(kernel: str, words: list[str]) -> None:
    stem = "carried" if kernel in CARRIED else "causes"
    view = CubinView.of((FIXTURES / f"{stem}_sm_90.cubin").read_bytes())
    found = vectorization(view, view.cubin.get_kerneldef_by_name(kernel)).accesses
    name = kernel.split("_")[0]
    texts = [access.cause.text for access in found if access.cause is not None and access.cause.name == name]
    assert any(all(word in text for word in words) for text in texts), texts


@pytest.mark.parametrize("name", sorted(TRITON_CAUSES))
def test_known_causes_of_triton_kernels(name: str) -> None:
    report = inspect([TRITON], LOOK)
    (kernel,) = (i.kernels[0] for i in report.images if Path(i.path).stem == name)
    found = kernel.vectorization
    assert found is not None
    assert found.described
    assert found.num_warps == 4
    loads, stores = TRITON_CAUSES[name]
    assert causes(found.accesses, "load") == expected(loads)
    assert causes(found.accesses, "store") == expected(stores)
    assert kernel.facts.occupancy is not None
    assert (kernel.facts.occupancy.threads, kernel.facts.occupancy.basis) == (128, "launch")


# What their code alone shows. How a block was laid out over the threads is Triton's choice: for a pointer that may be
# anything it gives neighbouring elements to neighbouring threads, and that is then what can be seen.
BARE_CAUSES = TRITON_CAUSES | {
    "in_unaligned": (("divisibility", "argument 0"), None),
    "out_unaligned": (None, ("stride", "argument 1")),
    "half_none": (("stride", "argument 0"), ("stride", "argument 1")),
    "mask": (("mask", "argument 0"), ("mask", "argument 1")),
    "stride": (("stride", "argument 3"), None),
    "rowstride": (("stride", "argument 0"), ("stride", "argument 1")),
    "dtype_small": (("dtype", "argument 0"), ("dtype", "argument 1")),
    "block_small": (("dtype", "argument 0"), ("dtype", "argument 1")),
}


@pytest.mark.parametrize("name", sorted(BARE_CAUSES))
def test_triton_kernels_without_their_description(name: str) -> None:
    view = CubinView.of((TRITON / f"{name}.cubin").read_bytes())
    found = vectorization(view, view.kernels[0]).accesses
    loads, stores = BARE_CAUSES[name]
    # One of eight may be counted from the whole thread number, which only Triton knows to be the part of it.
    assert causes(found, "load") - {("unknown", "argument 0")} == expected(loads)
    assert causes(found, "store") - {("unknown", "argument 1")} == expected(stores)


def package(tmp_path: Path, wrapper: str, cubin: bytes) -> Vectorization:
    report = inspect([make_pt2(tmp_path / "model.pt2", wrapper, {COPY_NAME: cubin})], LOOK)
    found = report.images[0].kernels[0].vectorization
    assert found is not None
    return found


def test_the_copy_package(tmp_path: Path) -> None:
    found = package(tmp_path, WRAPPER, COPY_CUBIN)
    assert (found.described, found.num_warps, found.shared) == (True, 4, 0)
    assert found.constants == (("B", "1024"), ("ALIGN", "True"))
    rows = [
        (a.pc, a.opcode, a.guard, a.bytes, a.argument, a.argument_type, a.divisibility)
        for a in found.accesses
    ]
    assert rows == [
        (0x110, "LDG.E.128", "@!P0", 16, "i", "*fp32", 16),
        (0x140, "LDG.E.128", "@!P1", 16, "i", "*fp32", 16),
        (0x150, "STG.E.128", "@!P0", 16, "o", "*fp32", 16),
        (0x170, "STG.E.128", "", 16, "o", "*fp32", 16),
    ]
    for access in found.accesses:
        assert access.cause is None
        assert access.line is not None
        assert access.line[1:] == (23, "tl.store(o + off, tl.load(i + off, mask=m), mask=m)")


def test_a_package_without_the_promise_names_the_argument(tmp_path: Path) -> None:
    wrapper = WRAPPER.replace("(0,): [['tt.divisibility', 16]], ", "")
    assert wrapper != WRAPPER
    found = package(tmp_path, wrapper, (TRITON / "in_unaligned.cubin").read_bytes())
    assert causes(found.accesses, "load") == {("divisibility", "i")}
    assert causes(found.accesses, "store") == set()
    assert [a.divisibility for a in found.accesses if a.action == "load"] == [None] * 8


def test_a_package_whose_cubin_sits_in_the_library(tmp_path: Path) -> None:
    wrapper = WRAPPER.replace(
        'loadKernel("/src/ind/cn5i7og2e662s5pizzgkuri3hruuvsg5njgg3shenw22q2nnofix/' + COPY_NAME + '"',
        "loadKernel(__copy_kernel_start",
    )
    assert wrapper != WRAPPER
    path = make_pt2(tmp_path / "model.pt2", wrapper, {"model.wrapper.so": host_elf(COPY_CUBIN)})
    (image,) = inspect([path], LOOK).images
    found = image.kernels[0].vectorization
    assert image.kind == "embedded"
    assert found is not None
    assert found.described
    assert [a.argument for a in found.accesses] == ["i", "i", "o", "o"]


def test_two_embedded_kernels_of_one_name_are_told_apart_by_their_symbol(tmp_path: Path) -> None:
    file = f'"/src/ind/cn5i7og2e662s5pizzgkuri3hruuvsg5njgg3shenw22q2nnofix/{COPY_NAME}"'
    first = WRAPPER.replace(file, "__copy_kernel_0_start").replace(", 0, cubin_dir_", ", 0")
    second = first.replace("copy_kernel_0", "copy_kernel_1").replace("(0,): [['tt.divisibility', 16]], ", "")
    assert WRAPPER != first != second
    library = (FIXTURES / "embedded.so").read_bytes()
    path = make_pt2(tmp_path / "model.pt2", first + second, {"model.wrapper.so": library})
    images = inspect([path], LOOK).images
    found = [image.kernels[0].vectorization for image in images]
    assert [image.symbol for image in images] == ["copy_kernel_0", "copy_kernel_1"]
    assert [causes(v.accesses, "load") for v in found if v] == [set(), {("divisibility", "i")}]
    assert all(v is not None and v.described and v.num_warps == 4 for v in found)


def test_two_kernels_of_one_name_are_told_apart_by_their_cubin() -> None:
    other = WRAPPER.replace(COPY_NAME, "other.cubin").replace("'B': 1024", "'B': 64")
    kernels = TritonKernels()
    kernels.add(Text("m.pt2!d/w.cpp", WRAPPER + other))
    first = kernels.find("copy_kernel", f"m.pt2!d/{COPY_NAME}")
    second = kernels.find("copy_kernel", "m.pt2!d/other.cubin")
    assert first is not None
    assert second is not None
    assert (dict(first.constants)["B"], dict(second.constants)["B"]) == ("1024", "64")
    assert kernels.find("copy_kernel", "m.pt2!d/third.cubin") is None
    assert kernels.find("another", f"m.pt2!d/{COPY_NAME}") is None


def test_a_wrapper_that_is_no_python_describes_nothing() -> None:
    kernels = TritonKernels()
    kernels.add(Text("w.cpp", WRAPPER.replace("def copy_kernel(", "def copy_kernel((")))
    kernels.add(Text("w.py", "async_compile.triton('k', '''def k(): pass''')"))
    kernels.add(Text("x.json", "[1, 2"))
    assert kernels.kernels == []


@pytest.mark.parametrize(
    "spelling",
    [
        "{'divisible_by_16': (0, 2), 'equal_to_1': ()}",
        "AttrsDescriptor(divisible_by_16=(0, 2), equal_to_1=())",
        "AttrsDescriptor.from_dict({'arg_properties': {'tt.divisibility': (0, 2), 'tt.equal_to': ()}, 'cls': 'x'})",
    ],
)
def test_older_alignment_spellings(spelling: str) -> None:
    kernels = TritonKernels()
    old = WRAPPER.replace(DIVISIBLE, spelling)
    assert old != WRAPPER
    kernels.add(Text("w.cpp", old))
    (kernel,) = kernels.kernels
    assert [(a.name, a.divisibility) for a in kernel.arguments] == [("i", 16), ("o", None), ("n", 16)]


def test_lines_outside_the_kernel_have_no_text() -> None:
    kernels = TritonKernels()
    kernels.add(Text("w.cpp", WRAPPER))
    (kernel,) = kernels.kernels
    assert kernel.line(19) == "pid = tl.program_id(0); off = pid * B + tl.arange(0, B)"
    assert kernel.line(3) == ""
    assert kernel.line(900) == ""


def test_a_bare_cubin_uses_the_types_of_its_signature() -> None:
    image = next(item for item in open_artifact(FIXTURES / "libtwo.so") if isinstance(item, Image))
    view = CubinView.of(image.data)
    kernel = view.cubin.get_kerneldef_by_regex("scaleIf")
    found = vectorization(view, kernel)
    assert [(a.name, a.type) for a in found.arguments] == [("argument 0", "*float"), ("argument 1", "float")]
    assert {a.argument for a in found.accesses} == {"argument 0"}


def test_a_pointer_inside_a_structure_is_named_by_its_place(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "38d1a903907e" in p.name)
    view = CubinView.of(path.read_bytes())
    found = vectorization(view, view.kernels[0]).accesses
    named = [access.argument for access in found if access.argument]
    assert len(named) > len(found) // 2
    assert all(name.startswith("argument 0+0x") for name in named)


def test_an_inductor_cache_is_described_by_its_python_file(tmp_path: Path) -> None:
    module = WRAPPER[WRAPPER.index("async_compile.triton(") : WRAPPER.index("device_str='cuda')")]
    source = module.replace("\n    ", "\n")
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cabc.py").write_text(f"copy_kernel_0 = {source}device_str='cuda')\n")
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "copy_kernel.cubin").write_bytes(COPY_CUBIN)
    (image,) = inspect([tmp_path], LOOK).images
    found = image.kernels[0].vectorization
    assert found is not None
    assert found.described
    assert found.accesses[0].line is not None
    assert found.accesses[0].line[2] == "tl.store(o + off, tl.load(i + off, mask=m), mask=m)"


def described(path: Path) -> tuple[bool, int | None, int, str, list[int | None]]:
    (image,) = inspect([path], LOOK).images
    found, facts = image.kernels[0].vectorization, image.kernels[0].facts
    assert found is not None
    assert facts.occupancy is not None
    return (
        found.described, found.num_warps, facts.occupancy.threads, facts.occupancy.basis,
        [argument.divisibility for argument in found.arguments[:3]],
    )  # fmt: skip


@pytest.mark.parametrize("stage", [".ttir", ".ttgir", ".source"])
def test_a_cubin_of_a_triton_cache_is_described_by_its_neighbours(tmp_path: Path, stage: str) -> None:
    (tmp_path / "mask.cubin").write_bytes((TRITON / "mask.cubin").read_bytes())
    assert described(tmp_path / "mask.cubin") == (False, None, 128, "required", [None, None, None])
    (tmp_path / f"mask{stage}").write_text((TRITON / "mask.ttir").read_text())
    (tmp_path / "mask.json").write_text((TRITON / "mask.json").read_text())
    (tmp_path / "other.json").write_text('{"name": "copy_kernel", "num_warps": 8, "shared": 0}')
    assert described(tmp_path / "mask.cubin") == (True, 4, 128, "launch", [16, 16, None])
    assert described(tmp_path / "mask.cubin") == described(tmp_path)


def test_intermediate_code_without_places_says_the_same() -> None:
    text = (TRITON / "mask.ttir").read_text()
    bare = re.sub(r' loc\("\w"\(#loc\)\)', "", text)
    assert "loc(" not in bare[bare.index("tt.func") : bare.index("attributes")]
    arguments = (Argument("i", "*fp32", 16), Argument("o", "*fp32", 16), Argument("n", "i32", None))
    for said in (text, bare, text.replace(' loc("o"(#loc))', ""), text.replace('loc("i"', 'loc("i), %i{<"')):
        kernels = TritonKernels()
        kernels.add(Text("mask.ttir", said))
        assert [(kernel.name, kernel.arguments) for kernel in kernels.kernels] == [("copy_kernel", arguments)]


@pytest.mark.parametrize(
    "signature",
    [
        "", "  ", "%i", "!tt.ptr<f32>, i32", "%i: !tt.ptr<f32>,, %n: i32", "%i: !tt.ptr<f32>, n: i32", "%i: ",
        "%i: f32 {",
    ],
)  # fmt: skip
def test_a_description_without_arguments_or_with_one_that_cannot_be_read_is_none(signature: str) -> None:
    kernels = TritonKernels()
    kernels.add(Text("k.ttir", f"module {{ tt.func public @k({signature}) attributes {{noinline = false}} {{}} }}"))
    assert kernels.kernels == []


def test_the_list_of_arguments_ends_with_its_own_parenthesis() -> None:
    kernels = TritonKernels()
    kernels.add(Text("k.ttir", "tt.func public @k(%a: i32) { } tt.func public @l(%b: i64) attributes {} { }"))
    assert [(kernel.name, kernel.arguments) for kernel in kernels.kernels] == [("k", (Argument("a", "i32", None),))]


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ("%i: !tt.ptr<f32>, %o: !tt.ptr<f32>, %n: i32", True),
        ("%i: !tt.ptr<f32>, %o: !tt.ptr<f32>", False),  # the third has four bytes: no scratch pointer
        ("%i: !tt.ptr<f32>", False),
        ("%a: i64, %b: i64, %c: i32, %d: i64, %e: i64, %f: i64", False),
    ],
)
def test_a_description_of_other_arguments_is_not_this_kernels(tmp_path: Path, arguments: str, fits: bool) -> None:
    (tmp_path / "mask.cubin").write_bytes((TRITON / "mask.cubin").read_bytes())
    (tmp_path / "mask.ttir").write_text(f"tt.func public @copy_kernel({arguments}) attributes {{}} {{}}")
    (image,) = inspect([tmp_path / "mask.cubin"], LOOK).images
    wide = image.kernels[0].vectorization
    assert wide is not None
    names = ["i", "o", "n", "scratch0", "scratch1"] if fits else [f"argument {n}" for n in range(5)]
    assert (wide.described, [argument.name for argument in wide.arguments]) == (fits, names)


def test_several_stages_of_one_compilation_describe_one_kernel() -> None:
    kernels = TritonKernels()
    text = (TRITON / "mask.ttir").read_text()
    for suffix in ("source", "ttgir", "ttir"):
        kernels.add(Text(f"cache/mask.{suffix}", text))
    kernels.add(Text("cache/other.ttir", text))
    assert [kernel.found_in for kernel in kernels.kernels] == ["cache/mask.source", "cache/other.ttir"]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # What is said at each place -> (path that is reported, also at, promised divisibility), in order.
        ("", "16", [("b", ["a"], 16)]),
        ("16", "", [("a", ["b"], 16)]),
        ("16", "16", [("a", ["b"], 16)]),
        ("", "", [("a", ["b"], None)]),
        ("16", "8", [("a", [], 16), ("b", [], 8)]),
    ],
)
def test_equal_bytes_are_told_apart_by_what_is_said_of_them(
    tmp_path: Path, first: str, second: str, expected: list[tuple[str, list[str], int | None]], jobs: int
) -> None:
    text = (TRITON / "aligned.ttir").read_text()
    for name, said in (("a", first), ("b", second)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "k.cubin").write_bytes((TRITON / "aligned.cubin").read_bytes())
        if said:
            (folder / "k.ttir").write_text(text.replace("divisibility = 16", f"divisibility = {said}"))
    with open_executor(jobs) as (executor, workers):
        paths = [tmp_path / "a", tmp_path / "b"]  # what is said in one of them is not about the other
        report = inspect(paths, LOOK, executor=executor, workers=workers)
    found = []
    for image in report.images:
        wide = image.kernels[0].vectorization
        assert wide is not None
        places = [Path(path).parent.name for path in (image.path, *image.also_at)]
        found.append((places[0], places[1:], wide.arguments[0].divisibility))
    assert found == expected
    assert [len(images) for images in report.given.values()] == [1, 1]


def test_code_for_a_debugger_is_not_explained_by_its_shape() -> None:
    view = CubinView.of((FIXTURES.parent.parent / "binary" / "data" / "debug_sm90.cubin").read_bytes())
    found = [a.cause for kernel in view.kernels for a in vectorization(view, kernel).accesses if a.cause is not None]
    assert found
    assert {(cause.name, "-G" in cause.text) for cause in found} == {("unknown", True)}
    assert not CubinView.of(COPY_CUBIN).is_debug


def assembled(lines: str) -> tuple[GlobalAccess, ...]:
    """The accesses of a kernel that consists of these lines."""
    view = CubinView.of((FIXTURES / "narrow_sm_90.cubin").read_bytes())
    kernel = view.cubin.get_kerneldef_by_name("mask")
    _, (unit,) = assemble(f".target sm_90\n.kernel mask\n{lines}")
    data = bytearray(view.cubin.data)
    start = kernel.section.offset
    data[start : start + 16 * len(unit.words)] = unit.words.tobytes()
    changed = CubinView.of(bytes(data))
    return vectorization(changed, changed.cubin.get_kerneldef_by_name("mask")).accesses[:2]


@pytest.mark.parametrize(
    ("between", "opcode"),
    [
        ("NOP", "NOP"), ("NANOSLEEP 0xa", "NANOSLEEP"), ("SHFL.BFLY PT, R9, R9, 0x1, 0x1f", "SHFL.BFLY"),
        ("CS2R R10, SR_CLOCKLO", "CS2R"), ("S2UR UR6, SR_CLOCKLO", "S2UR"), ("VOTE.ANY R10, PT, P0", "VOTE.ANY"),
        ("IADD3 R9, R9, 0x1, RZ", ""), ("CS2R R10, SRZ", ""), ("S2R R10, SR_TID.Y", ""), ("LDS R10, [R0]", ""),
    ],
)  # fmt: skip
def test_what_has_its_place_in_time_may_have_kept_accesses_apart(between: str, opcode: str) -> None:
    lines = """
        LDC.64 R2, c[0x0][0x210];
        S2R R0, SR_TID.X;
        IMAD.WIDE R2, R0, 0x8, R2;
        STG.E desc[UR4][R2.64], R8;
        {};
        STG.E desc[UR4][R2.64+0x4], R9;
        EXIT;
    """
    could = "2 accesses at 0x0 to 0x4 of the same address could be one of 64 bits"
    found = [(access.cause.name, access.cause.text) for access in assembled(lines.format(between)) if access.cause]
    if opcode:
        stop = f"or {opcode} at 0x0040, which stands between them, kept them apart"
        told = ("unknown", f"{could}: the pointer may not be known to be a multiple of 8, {stop}")
    else:
        told = ("divisibility", f"{could}, but the compiler can't know that the pointer is a multiple of 8")
    assert found == [told, told]


@pytest.mark.parametrize("where", ["in front", "behind", "other block"])
def test_what_the_scheduler_may_have_moved_out_from_between_accesses_is_told(where: str) -> None:
    vote = "VOTE.ANY R9, PT, P0;"
    lines = f"""
        LDC.64 R2, c[0x0][0x210];
        S2R R0, SR_TID.X;
        IMAD.WIDE R2, R0, 0x8, R2;
        {vote if where == "in front" else ""}
        STG.E desc[UR4][R2.64], R8;
        STG.E desc[UR4][R2.64+0x4], R9;
        {vote if where == "behind" else ""}
        EXIT;
        {vote if where == "other block" else ""}
    """
    causes = [access.cause for access in assembled(lines) if access.cause]
    if where == "other block":
        assert [cause.name for cause in causes] == ["divisibility"] * 2
    else:
        assert [cause.name for cause in causes] == ["unknown"] * 2
        at = "0x0030" if where == "in front" else "0x0050"
        said = f"or VOTE.ANY at {at}, which may have stood between them before the code was scheduled, kept them apart"
        assert all(cause.text.endswith(said) for cause in causes)


def test_a_condition_kept_in_a_register_may_be_another_s() -> None:
    lines = """
        LDC.64 R2, c[0x0][0x210];
        S2R R0, SR_TID.X;
        ISETP.GE.AND P0, PT, R0, 0x1, PT;
        ISETP.GE.AND P2, PT, R0, 0x5, PT;
        P2R R6, PR, RZ, 0x1;
        @P0 LDG.E R8, desc[UR4][R2.64];
        ISETP.NE.AND P1, PT, R6, RZ, PT;
        @{} LDG.E R9, desc[UR4][R2.64+0x4];
        EXIT;
    """
    names = {
        guard: {access.cause.name for access in assembled(lines.format(guard)) if access.cause}
        for guard in ("P0", "P1", "P2")
    }
    assert names == {"P0": {"divisibility"}, "P1": {"unknown"}, "P2": {"mask"}}
