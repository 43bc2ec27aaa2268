"""The PTX tier without a GPU: parsing, markers, records, ptxas, and finding the PTX."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from gwatch.cuda import images
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.ptx import PtxModule, defines
from gwatch.cuda.images import ImageStore, container_at
from gwatch.cuda.trace import ptxas, ptxfind
from gwatch.cuda.trace.ptxfind import find_ptx
from gwatch.cuda.trace.ptxmarkers import find_ptx_markers
from gwatch.cuda.trace.ptxplan import choose_ptx_format, instrument, plan_ptx, ptx_scopes
from gwatch.errors import (
    GWatchError,
    KernelError,
    ParseError,
    SiteError,
    ToolError,
    TraceError,
    UnsupportedError,
)
from gwatch.rewrite.ring import RecordKind

DATA = Path(__file__).resolve().parent / "data"
sys.path.insert(0, str(DATA))

from build import changes  # noqa: E402

SOURCES = sorted(path.stem for path in DATA.glob("*.ptx") if ".traced" not in path.suffixes)
CUBINS = {name: DATA / f"{name}.cubin" for name in ("cute_matmul", "triton_attention", "tilelang_matmul")}
CUBINS |= {"markers": DATA / "markers_sm90a.cubin", "sentinels": DATA / "sentinels_sm90a.cubin"}


def module_of(name: str) -> PtxModule:
    return PtxModule((DATA / f"{name}.ptx").read_text(), f"{name}.ptx")


def code_of(name: str) -> tuple[Cubin, Any]:
    cubin = Cubin.from_file(CUBINS[name])
    return cubin, cubin.get_kerneldef_by_name(next(iter(cubin.get_map_kernel_def())))


def test_the_data_has_every_front_end() -> None:
    assert SOURCES == ["cute_matmul", "markers", "sentinels", "tilelang_matmul", "triton_attention"]


@pytest.mark.parametrize("name", SOURCES)
def test_ptx_of_every_front_end_is_read(name: str) -> None:
    module = module_of(name)
    _, kernel = code_of(name)
    function = module.kernel(kernel.name)
    assert module.target == "sm_90a" and module.version is not None and module.version >= (8, 0)
    assert function.parameter_bytes == [parameter.size for parameter in kernel.params]
    assert defines(module.text, kernel.name) and not defines(module.text, kernel.name[:-1])
    statements = function.statements
    assert statements[-1].text == "ret;" or any(s.text == "ret;" for s in statements)
    for statement in statements:
        assert statement.text.split()[0] in module.text[statement.start : statement.end]
        assert function.begin <= statement.start < statement.end <= function.finish
    # Places are those of the text: putting the pieces together gives it back.
    body = module.text[function.begin : function.finish]
    assert all(s.text.endswith(";") for s in statements if s.kind == "instruction")
    assert body.count("pmevent") == sum("pmevent" in s.text for s in statements)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("level", ["thread", "warp"])
def test_records_are_written_into_ptx_as_in_the_golden(name: str, level: str) -> None:
    module = module_of(name)
    found = ptx_scopes(module, module.kernels[0], {}, level == "warp")
    fmt = choose_ptx_format(found, "gpu", 32, "newest", None)
    text = instrument(found, "gpu", fmt, "gwatch_ring")
    assert changes(module.text, text) == (DATA / f"{name}.{level}.traced.ptx").read_text()
    assert PtxModule(text).kernels == module.kernels
    assert text.count("$gwatch_ready:") == 1


def test_nested_calls_comments_and_braces_are_read() -> None:
    module = PtxModule(
        """
        .version 8.0 // a semicolon; in a comment {
        .target sm_90, debug
        .address_size 64
        .file 1 "a; //b.cu"
        .func (.param .b32 out) helper (.param .b32 in) { st.param.b32 [out], %r1; ret; }
        .visible .entry k(.param .align 4 .b8 a[12], .param .u64 .ptr .global .align 16 b, .param .f16x2 c)
        .maxntid 128, 1, 1
        {
          .reg .b32 %r<4>; /* ; } */
          .shared .align 4 .b8 pool[16];
          { // callseq 0
            .param .b32 p;
            call.uni (r), helper, (p);
          }
        waiting: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
          @!%p1 bra waiting;
          ld.global.v2.b32 {%r1, %r2}, [%rd1];
          ret;
        }
        .section .debug_str { info: .b8 1 }
        """
    )
    assert module.kernels == ["k"] and [f.name for f in module.functions] == ["helper", "k"]
    kernel = module.kernel("k")
    assert kernel.parameter_bytes == [12, 8, 4]
    assert [s.kind for s in kernel.statements].count("label") == 1
    assert module.text[kernel.code :].startswith("{ // callseq 0")  # declarations must not land inside it
    with pytest.raises(KernelError, match=r"\[kernel-missing\]"):
        module.kernel("other")


@pytest.mark.parametrize(
    "text", ["", "hello", ".version 8.0\n.target sm_90\n.entry k() { ret", ".version 8.0\n.target sm_90\n%%%"]
)
def test_what_is_no_ptx_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ParseError, match=r"\[ptx-syntax\]") as refusal:
        PtxModule(text, "x.ptx")
    assert "x.ptx" in str(refusal.value)


HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def marked(*lines: str, more: str = "") -> PtxModule:
    body = "\n".join(lines)
    return PtxModule(
        f"{HEADER}{more}\n.visible .entry k()\n{{\n.reg .b32 %r<9>;\n.reg .pred %p<3>;\n{body}\nret;\n}}\n"
    )


def test_both_forms_of_markers_are_found_with_their_guards() -> None:
    module = marked(
        "pmevent.mask 0xa001;", "@!%p1 pmevent.mask 0xb001;", "pmevent 3;", "pmevent.mask 0x1;",
        "mov.u32 %r1, 1398032215;", "mov.u32 %r1, 0x5;", "mov.u32 %r1, 0x47574348;",
        "mov.b32 %r2, 0x45444757;", "mov.b32 %r2, 5;", "mov.b32 %r2, 1196901192;",
        "mov.u32 %r1, 0x53544757;", "mov.u32 %r2, 6;", "mov.u32 %r1, 0x47574348;",
    )  # fmt: skip
    found = find_ptx_markers(module, module.kernel("k"))
    assert [(m.scope, m.end, m.guard, m.sentinel) for m in found] == [
        (1, False, "", False), (1, True, "!%p1", False), (5, False, "", True), (5, True, "", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "more", "code"),
    [
        (["ret;"], "", "no-markers"),
        (["pmevent.mask 0xa001;"], "", "scope-unended"),
        (["mov.u32 %r1, 0x53544757;", "mov.u32 %r1, 4096;", "mov.u32 %r1, 0x47574348;"], "", "scope-id"),
        (["pmevent.mask 0xa801;", "pmevent.mask 0xb001;"], "", "scope-payload"),
        (
            [
                ".loc 1 4 0",
                "pmevent.mask 0xa001;",
                ".loc 1 9 0",
                "pmevent.mask 0xa001;",
                "pmevent.mask 0xb001;",
            ],
            "",
            "scope-id-twice",
        ),
        (
            ["pmevent.mask 0xa001;", "pmevent.mask 0xb001;"],
            ".func f() { pmevent.mask 0xa001; ret; }",
            "marker-in-function",
        ),
    ],
)
def test_markers_in_ptx_that_would_give_wrong_intervals_are_refused(
    lines: list[str], more: str, code: str
) -> None:
    with pytest.raises(SiteError, match=rf"\[{code}\]"):
        ptx_scopes(marked(*lines, more=more), "k", {}, False)


def test_markers_of_blocks_stand_where_the_block_is() -> None:
    """Not where its constructor is, which all of them share."""
    files = '.file 1 "/home/me/a.cu"\n.file 2 "/opt/include/gwatch/cuda/trace.hpp"'
    inlined = ".loc 2 38 71, function_name $L__info_string0, inlined_at 1 {} 1"
    block = [inlined.format(4), "pmevent.mask 0xa001;", ".loc 1 4 1", "pmevent.mask 0xb001;"]
    assert len(ptx_scopes(marked(*block, *block, more=files), "k", {}, False).markers) == 4
    block += [inlined.format(9), "pmevent.mask 0xa001;"]
    with pytest.raises(SiteError, match=r"\[scope-id-twice\].* a\.cu:4, a\.cu:9;"):
        ptx_scopes(marked(*block, more=files), "k", {}, False)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("level", ["thread", "warp"])
def test_records_compile(name: str, level: str) -> None:
    cubin, kernel = code_of(name)
    found = ptx_scopes(module_of(name), kernel.name, {}, level == "warp")
    planned = plan_ptx(found, cubin, kernel, constants=True, keep="first" if level == "warp" else "newest")
    compiled = Cubin.from_bytes(planned.data)
    traced = compiled.get_kerneldef_by_name(kernel.name)
    assert compiled.arch.name == cubin.arch.name
    assert planned.site_map.registers_after == traced.register_count > 0
    assert [p.size for p in traced.params] == [p.size for p in kernel.params]
    symbol = next(s for s in compiled.elf.symbols if s.name == planned.site_map.descriptor_symbol)
    assert (symbol.value, symbol.size) == (planned.site_map.descriptor_offset, 64)
    assert sum("GLOBALTIMERLO" in text for text in traced.texts) >= len(found.markers)
    assert "ptxas 13." in planned.compiler


@pytest.mark.parametrize(("duration", "kind"), [(None, RecordKind.WIDE), (3e9, RecordKind.LONG)])
def test_long_records_compile_too(duration: float | None, kind: RecordKind) -> None:
    cubin, kernel = code_of("markers")
    found = ptx_scopes(module_of("markers"), kernel.name, {}, False)
    planned = plan_ptx(found, cubin, kernel, constants=True, clock="sm", duration_ns=duration)
    assert planned.site_map.format.kind is kind
    with pytest.raises(UnsupportedError, match=r"\[ptx-clock\]"):
        plan_ptx(found, cubin, kernel, clock="anchor")


def test_a_constant_that_would_move_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cubin, kernel = code_of("markers")
    text = (
        (DATA / "markers.ptx")
        .read_text()
        .replace(".const .align 4 .b8 weights", ".const .align 4 .b8 other[8];\n.const .align 4 .b8 weights")
    )
    assert "other" in text
    found = ptx_scopes(PtxModule(text), kernel.name, {}, False)
    with pytest.raises(TraceError, match=r"\[ptx-constants\].*weights"):
        plan_ptx(found, cubin, kernel, constants=True)


def fake_ptxas(folder: Path, told: str, code: int = 1) -> Path:
    path = folder / "ptxas"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0; fi\n'
        f"echo '{told}' >&2; exit {code}\n"
    )
    path.chmod(0o755)
    return path


def test_ptx_newer_than_any_ptxas_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "ptxas a.ptx, line 9; fatal : Unsupported .version 9.4; current version is '\\''9.0'\\''"
    monkeypatch.setenv("GW_PTXAS_PATH", str(fake_ptxas(tmp_path, told)))
    cubin, kernel = code_of("cute_matmul")
    found = ptx_scopes(module_of("cute_matmul"), kernel.name, {}, False)
    with pytest.raises(UnsupportedError, match=r"\[ptx-too-new\].*PTX 9.4.*CUDA 13.0.*9.0.*nvidia-cuda-nvcc"):
        plan_ptx(found, cubin, kernel)


def test_a_ptxas_that_refuses_or_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GW_PTXAS_PATH", str(fake_ptxas(tmp_path, "ptxas fatal : no")))
    with pytest.raises(ToolError, match=r"\[ptxas-failed\].*fatal : no"):
        ptxas.compile_ptx("x", "sm_90a", "x.ptx")
    monkeypatch.setenv("GW_PTXAS_PATH", str(tmp_path / "none"))
    with pytest.raises(ToolError, match=r"\[ptxas-missing\].*pip install"):
        ptxas.find_ptxas()


def test_the_newest_ptxas_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("a", "12.9.1"), ("b", "13.4.59"), ("c", "13.10.2")):
        home = tmp_path / name / "bin"
        home.mkdir(parents=True)
        release = ".".join(version.split(".")[:2])
        (home / "ptxas").write_text(
            f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{version}'\n"
        )
        (home / "ptxas").chmod(0o755)
    monkeypatch.setattr(ptxas, "candidates", lambda: [tmp_path / n / "bin/ptxas" for n in "abc"])
    assert ptxas.find_ptxas() == ptxas.Ptxas(tmp_path / "c/bin/ptxas", (13, 10, 2))
    assert ptxas.find_ptxas().release == "13.10"


# finding -------------------------------------------------------------------------------------------------------------


def find(name: str, dsl: str, store: ImageStore | None = None, given: Any = None) -> PtxModule:
    cubin, kernel = code_of(name)
    return find_ptx(cubin, kernel, 7, 8, dsl, store or ImageStore(), given)


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty dump folder of CuTe, and nothing else to find."""
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path / "dump"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ptxfind, "_libraries", lambda kernel: iter(()))
    (tmp_path / "dump").mkdir()
    (tmp_path / "cache" / "hash").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "dump"


def test_the_callers_own_ptx_comes_first(dump: Path) -> None:
    path = DATA / "cute_matmul.ptx"
    assert find("cute_matmul", "cute", given=path).name == "cute_matmul.ptx"
    assert find("cute_matmul", "cute", given=path.read_text()).text == path.read_text()
    assert find("cute_matmul", "cute", given=path.read_bytes()).text == path.read_text()
    for wrong in (DATA / "markers.ptx", dump / "none.ptx"):
        with pytest.raises(TraceError, match=r"\[ptx-missing\]"):
            find("cute_matmul", "cute", given=wrong)


def test_a_fresh_dump_is_found_by_its_kernel(dump: Path) -> None:
    for name in ("cute_matmul", "markers"):
        (dump / f"{name}.ptx").write_text((DATA / f"{name}.ptx").read_text())
    (dump / "notes.ptx").write_bytes(b"\xff\xfe")
    assert find("cute_matmul", "cute").name == "cute_matmul.ptx"


def test_tritons_cache_is_searched(dump: Path) -> None:
    (dump.parent / "cache/hash/attention_kernel.ptx").write_text((DATA / "triton_attention.ptx").read_text())
    assert find("triton_attention", "triton").kernels == ["attention_kernel"]


class CompiledKernel:
    """As Triton's: the handle and what was compiled."""

    def __init__(self, handle: int, asm: dict[str, str]) -> None:
        self.function, self.asm = handle, asm


class StaticallyLaunchedCudaKernel:
    """As Inductor's: the handle and a file of the cache."""

    def __init__(self, handle: int, path: Path) -> None:
        self.function, self.cubin_path = handle, str(path)


def test_tritons_compiled_kernel_is_known_by_its_handle(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DATA / "triton_attention.ptx").read_text()
    monkeypatch.setitem(sys.modules, "triton", type(sys)("triton"))
    other = CompiledKernel(9, {"ptx": text.replace("pmevent.mask 0xa001", "pmevent.mask 0xa004")})
    kept = [other, CompiledKernel(8, {"ptx": text})]
    assert find("triton_attention", "triton").text == text
    path = dump.parent / "cache/hash/attention_kernel.cubin"
    path.with_suffix(".ptx").write_text(text + "// from the cache")
    old(path.with_suffix(".ptx"))
    kept[:] = [other, StaticallyLaunchedCudaKernel(8, path)]  # type: ignore[list-item]
    assert find("triton_attention", "triton").text.endswith("// from the cache")


@pytest.mark.parametrize(
    ("dsl", "said"),
    [
        ("cute", "CUTE_DSL_KEEP_PTX.*before `import cutlass`|before `import cutlass`.*CUTE_DSL_KEEP_PTX"),
        ("triton", "TRITON_CACHE_DIR"),
        ("tilelang", "export_ptx"),
        ("", "compute_90a"),
    ],
)
def test_a_missing_dump_is_told_with_the_lines_that_make_it(
    dump: Path, dsl: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TraceError, match=rf"\[ptx-missing\].*({said})"):
        find("cute_matmul", dsl)


def test_cutlass_imported_too_early_is_told(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cutlass", type(sys)("cutlass"))
    monkeypatch.delenv("CUTE_DSL_KEEP_PTX", raising=False)
    with pytest.raises(TraceError, match=r"\[ptx-missing\].*imported without CUTE_DSL_KEEP_PTX"):
        find("cute_matmul", "cute")


def test_an_unknown_dsl_is_refused(dump: Path) -> None:
    with pytest.raises(TraceError, match=r"\[dsl-unknown\]"):
        find("cute_matmul", "numba")


def old(path: Path) -> None:
    os.utime(path, (1, 1))


def test_a_dump_of_another_version_of_the_kernel_is_stale(dump: Path) -> None:
    text = (DATA / "markers.ptx").read_text()
    (dump / "a.ptx").write_text(text.replace(".param .u32 marked_param_2", ".param .u64 marked_param_2"))
    with pytest.raises(TraceError, match=r"\[ptx-stale\].*other parameters or scope markers"):
        find("markers", "cute")
    (dump / "a.ptx").write_text(text.replace("pmevent.mask 45059", "pmevent.mask 45060"))
    with pytest.raises(TraceError, match=r"\[ptx-stale\].*other parameters or scope markers"):
        find("markers", "cute")


def test_ptx_that_was_named_is_held_against_the_code_too(tmp_path: Path) -> None:
    """Launched with other parameters it would read what isn't there."""
    text = (DATA / "markers.ptx").read_text()
    path = tmp_path / "named.ptx"
    for old_text, new_text in (
        (".param .u32 marked_param_2", ".param .u64 marked_param_2"),
        ("pmevent.mask 45059", "pmevent.mask 45060"),
    ):
        path.write_text(text.replace(old_text, new_text))
        for given in (path, path.read_text(), path.read_bytes()):
            with pytest.raises(TraceError, match=r"\[ptx-stale\].*other parameters or scope markers.*ptx="):
                find("markers", "", given=given)
    with pytest.raises(TraceError, match=r"\[ptx-missing\] the given PTX does not define"):
        find("markers", "", given=CUBINS["markers"].read_bytes())


def test_an_old_dump_counts_only_where_it_compiles_to_the_code_that_ran(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dump / "a.ptx"
    path.write_text((DATA / "markers.ptx").read_text())
    old(path)
    ran = CUBINS["markers"].read_bytes()
    monkeypatch.setattr(ptxfind, "compile_ptx", lambda text, arch, name: (ran, None))
    assert find("markers", "cute").name == "a.ptx"
    other = Cubin.from_file(DATA / "markers_sm90a.cubin")
    changed = bytearray(other.data)
    section = other.elf.section(other.get_kerneldef_by_name("marked").section_index)
    changed[section.offset] ^= 1
    monkeypatch.setattr(ptxfind, "compile_ptx", lambda text, arch, name: (bytes(changed), None))
    with pytest.raises(TraceError, match=r"\[ptx-stale\].*disk cache"):
        find("markers", "cute")


def test_two_dumps_of_one_kernel_are_told_apart_or_refused(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DATA / "markers.ptx").read_text()
    (dump / "a.ptx").write_text(text)
    (dump / "b.ptx").write_text(text.replace("0f3F000000", "0f3E800000"))
    assert len({path.read_text() for path in dump.iterdir()}) == 2
    monkeypatch.setattr(ptxfind, "_compiles_to", lambda module, cubin, kernel: module.name == "b.ptx")
    assert find("markers", "cute").name == "b.ptx"
    monkeypatch.setattr(ptxfind, "_compiles_to", lambda module, cubin, kernel: False)
    with pytest.raises(TraceError, match=r"\[ptx-ambiguous\].*a.ptx, b.ptx"):
        find("markers", "cute")


def fatbin(*members: tuple[int, bytes]) -> bytes:
    """A fat binary of uncompressed members (kind 1 PTX, 2 ELF)."""
    made = b""
    for kind, data in members:
        padded = data + bytes(-len(data) % 8)
        header = struct.pack(
            "<HHIQIIIIIIQQQ", kind, 0x101, 64, len(padded), 0, 0, 0, 90, 0, 0, 0, 0, len(data)
        )
        assert len(header) == 64, len(header)
        made += header + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(made)) + made


def at(data: bytes) -> tuple[int, Any]:
    buffer = ctypes.create_string_buffer(data, len(data) + 1)
    return ctypes.addressof(buffer), buffer


def test_ptx_inside_a_loaded_fat_binary_is_kept_and_found(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DATA / "markers.ptx").read_bytes()
    whole = fatbin((2, b"\x7fELF" + bytes(60)), (1, text))
    address, keep = at(whole)
    wrapper, also = at(struct.pack("<IIQQ", 0x466243B1, 1, address, 0))
    for place, largest in itertools.product((address, wrapper), (len(whole), 100)):
        monkeypatch.setattr(images, "WHOLE_BYTES", largest)
        kept = container_at(place)
        assert kept == whole if largest > 100 else kept is not None and b"\x7fELF" not in kept
        store = ImageStore()
        store.contained(7, kept)
        assert find("markers", "", store).text.encode() == text
        store.forget(7)
        with pytest.raises(TraceError, match=r"\[ptx-missing\]"):
            find("markers", "", store)
    del keep, also


def test_of_ptx_for_several_architectures_the_launched_one_is_taken(dump: Path) -> None:
    text = (DATA / "markers.ptx").read_bytes()
    store = ImageStore()
    store.contained(7, fatbin((1, text.replace(b"sm_90a", b"sm_80")), (1, text)))
    assert find("markers", "", store).target == "sm_90a"


def test_ptx_text_that_was_loaded_is_kept() -> None:
    text = (DATA / "markers.ptx").read_bytes()
    address, keep = at(b"\n\n\n\n\n" + text)
    store = ImageStore()
    kept = container_at(address)
    assert kept == b"\n\n\n\n\n" + text
    store.contained(7, kept)
    assert find("markers", "triton", store).kernels == ["marked"]
    code = fatbin((2, b"\x7fELF" + bytes(60)))
    only_code, also = at(code)
    assert container_at(only_code) == code and container_at(0) is None
    elf, more = at(b"\x7fELF" + bytes(60))
    assert container_at(elf) is None
    del keep, also, more


def test_every_refusal_is_a_gwatch_error_with_a_cure() -> None:
    for dsl, cure in ptxfind._CURES.items():
        assert cure and dsl in ptxfind.DSLS
    assert issubclass(TraceError, GWatchError)
