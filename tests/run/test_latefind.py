"""Finding a launched kernel's code: by handle, by name, in fat binaries on disk, or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gwatch.cuda import cupti, latefind
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.closed import closed_symbol
from gwatch.cuda.images import ImageStore, elf_extent, has_kernel
from gwatch.cuda.latefind import HandleFacts, cupy_images, fatbin_images, find_image
from gwatch.errors import TraceError, UnsupportedError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/cuda/trace/matmul_sm90.cubin"
IMAGE = EXAMPLE.read_bytes()
REGISTERS = Cubin.from_bytes(IMAGE).get_kerneldef_by_name("matmul").register_count


def facts(owner: int = 5, registers: int | None = REGISTERS, version: int | None = 90) -> HandleFacts:
    return HandleFacts(0x1234, False, owner, registers, version, ())


def changed(image: bytes) -> bytes:
    """The same cubin with one bit of the kernel's code flipped."""
    at = Cubin.from_bytes(image).get_kerneldef_by_name("matmul").section.offset
    return image[:at] + bytes([image[at] ^ 1]) + image[at + 1 :]


def test_the_extent_of_an_image_in_memory_is_its_size(corpus_all: list[Path]) -> None:
    for path in corpus_all:
        raw = path.read_bytes()
        held = ctypes.create_string_buffer(raw + bytes(64), len(raw) + 64)
        # A file may be padded behind its last part; never is less taken than all parts.
        extent = elf_extent(ctypes.addressof(held))
        assert extent <= len(raw) and not any(raw[extent:]), path.name
        assert Cubin.from_bytes(raw[:extent]).get_map_kernel_def().keys() == (
            Cubin.from_bytes(raw).get_map_kernel_def().keys()
        )


def test_other_bytes_have_no_extent() -> None:
    for raw in (b".version 8.0", b"\x7fELF\x01" + bytes(100), struct.pack("<II", 0x466243B1, 1)):
        held = ctypes.create_string_buffer(raw, 128)
        assert elf_extent(ctypes.addressof(held)) == 0
    assert elf_extent(0) == 0


def test_kernels_are_told_by_their_section_names() -> None:
    assert has_kernel(IMAGE, "matmul") and not has_kernel(IMAGE, "matmu") and not has_kernel(IMAGE, "atmul")


def test_the_image_of_the_owning_module_comes_first() -> None:
    store = ImageStore()
    store.loaded(5, IMAGE)
    store.loaded(6, changed(IMAGE))
    assert find_image("matmul", facts(5), store).data == IMAGE
    assert find_image("matmul", facts(6), store).data == changed(IMAGE)


def test_an_unknown_owner_is_searched_by_name_and_never_guessed() -> None:
    store = ImageStore()
    store.seen(IMAGE)
    store.seen(IMAGE)
    found = find_image("matmul", facts(99), store)
    assert found.data == IMAGE and found.origin == "seen at load"
    store.seen(changed(IMAGE))
    assert find_image("matmul", facts(99), store).data == IMAGE  # known by now
    with pytest.raises(TraceError, match=r"\[image-ambiguous\] 2 different kernels named matmul"):
        find_image("matmul", facts(98), store)
    store.loaded(99, None)  # the handle is handed out again, for something else
    with pytest.raises(TraceError, match=r"\[image-ambiguous\]"):
        find_image("matmul", facts(99), store)


def test_an_image_of_another_known_module_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "mapped_files", list)
    store = ImageStore()
    store.seen(IMAGE)
    store.loaded(5, IMAGE)
    assert find_image("matmul", facts(5), store).data == IMAGE
    with pytest.raises(TraceError, match=r"\[image-not-found\]"):
        find_image("matmul", facts(99), store)


def test_an_image_that_contradicts_the_driver_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "mapped_files", list)
    store = ImageStore()
    store.seen(IMAGE)
    for wrong in (facts(99, registers=REGISTERS + 8), facts(99, version=80)):
        with pytest.raises(
            TraceError, match=r"\[image-not-found\].*import gwatch.libpygwatch.*init_cupti_hooks"
        ):
            find_image("matmul", wrong, store)


def fatbin(*members: tuple[int, int, bytes]) -> bytes:
    """A container of (kind, sm, data) members, uncompressed."""
    body = b""
    for kind, sm, data in members:
        padded = data + bytes(-len(data) % 8)
        header = struct.pack("<HHIQI", kind, 0x101, 64, len(padded), 0) + bytes(8)
        header += struct.pack("<I", sm) + bytes(8) + struct.pack("<QQQ", 0x11, 0, len(padded))
        body += header.ljust(64, b"\0") + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_a_handle_has_the_image_of_the_fat_binary_it_was_loaded_from() -> None:
    """Also where the driver loads it later, and two of one name were loaded."""
    store = ImageStore()
    for handle, image in ((5, IMAGE), (6, changed(IMAGE))):
        store.loaded(handle, None)
        store.contained(handle, fatbin((2, 80, b"\x7fELF" + bytes(60)), (2, 90, image)))
        store.seen(image)
    for handle, image in ((5, IMAGE), (6, changed(IMAGE))):
        found = find_image("matmul", facts(handle), store)
        assert found.data.rstrip(b"\0") == image.rstrip(b"\0") and found.origin == "fat binary seen at load"
        assert store.holds(handle, image) and not store.holds(handle, changed(image))
    with pytest.raises(TraceError, match=r"\[image-ambiguous\]"):
        find_image("matmul", facts(7), store)
    store.forget(5)
    assert not store.holds(5, IMAGE)
    store.contained(5, fatbin((2, 90, IMAGE))[:-20])
    assert store.images(5) == []
    with pytest.raises(TraceError, match=r"\[image-not-found\] the fat binary that other .*\[fatbin-truncated\]"):
        find_image("other", facts(5), store)


def library(blob: bytes, names: bytes) -> bytes:
    """An ELF64 shared library with a .nv_fatbin section and some plain text."""
    strings = b"\0.nv_fatbin\0.shstrtab\0.rodata\0"
    offsets = [64, 64 + len(blob), 64 + len(blob) + len(names)]
    table = offsets[2] + len(strings)
    sections = bytes(64)
    for name, at, size in (
        (1, offsets[0], len(blob)),
        (22, offsets[1], len(names)),
        (12, offsets[2], len(strings)),
    ):
        sections += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 8, 0)
    header = struct.pack(
        "<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, 0, table, 0, 64, 56, 0, 64, 4, 3
    )
    return header + blob + names + strings + sections


def test_a_mapped_librarys_fat_binary_is_searched_by_kernel_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blob = fatbin((1, 90, b"ptx"), (2, 80, IMAGE), (2, 90, IMAGE))
    good, other = tmp_path / "libgood.so", tmp_path / "libother.so"
    good.write_bytes(library(blob, b"\0matmul\0").ljust(8192, b"\0"))
    other.write_bytes(library(blob, b"\0softmax\0").ljust(8192, b"\0").replace(b"matmul", b"nothng"))
    monkeypatch.setattr(
        cupti, "mapped_files", lambda: [str(other), str(good), str(good), "/deleted (deleted)"]
    )
    assert [Cubin.from_bytes(image).arch.name for image in fatbin_images("matmul", 90)] == ["sm_90"]
    assert len(list(fatbin_images("matmul", None))) == 2
    assert list(fatbin_images("softmax", 90)) == []
    found = find_image("matmul", facts(99), ImageStore())
    assert found.origin == "fat binary of a mapped library" and has_kernel(found.data, "matmul")


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[int]:
    """The address at which a file is mapped."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        held = ctypes.c_char.from_buffer(view)
        yield ctypes.addressof(held)
        del held


def test_a_closed_librarys_kernels_are_refused_by_where_they_were_loaded_from(tmp_path: Path) -> None:
    for name, closed in (("libcublasLt.so.12", True), ("libcudnn_ops.so.9.1.0", True), ("libmine.so", False)):
        (tmp_path / name).write_bytes(IMAGE)
        with mapped(tmp_path / name) as address:
            store = ImageStore()
            store.loaded(5, IMAGE, address=address + 64)
            if closed:
                with pytest.raises(
                    UnsupportedError, match=rf"^\[closed-library\] matmul belongs to {name}, .*licence"
                ):
                    find_image("matmul", facts(5), store)
            else:
                assert find_image("matmul", facts(5), store).data == IMAGE
            store.forget(5)
            assert store.address(5) == 0


def test_a_closed_librarys_fat_binary_is_not_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blob = library(fatbin((2, 90, IMAGE)), b"\0matmul\0").ljust(8192, b"\0")
    closed, good = tmp_path / "libcusparse.so.12", tmp_path / "libgood.so"
    closed.write_bytes(blob)
    good.write_bytes(blob)
    files = [str(closed), "/deleted/libcufft.so.11"]
    monkeypatch.setattr(cupti, "mapped_files", lambda: files)
    assert list(fatbin_images("matmul", 90)) == []
    with pytest.raises(UnsupportedError, match=r"\[closed-library\] matmul belongs to libcusparse.so.12"):
        find_image("matmul", facts(99), ImageStore())
    with pytest.raises(TraceError, match=r"\[image-not-found\]"):
        find_image("softmax", facts(99), ImageStore())
    files.append(str(good))  # the same template in a library that is open
    assert find_image("matmul", facts(99), ImageStore()).data == IMAGE


@pytest.mark.parametrize(
    ("symbol", "closed"),
    [
        ("_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiEEv", True),
        ("_Z17gemv2T_kernel_valIiiffffLi128E18cublasGemvParamsExIiEEvT_", True),
        ("_ZN5cudnn2bn20bn_fw_tr_1C11_kernelIfEEv", True),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", True),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", True),
        ("ampere_sgemm_128x64_nn", True),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEv", False),
        ("_ZN7cutlass7device_kernelIN5flash11enable_sm90EEEv", False),
        ("cutlass_80_tensorop_s16816gemm_f16_128x128_32x4_nn_align8", False),
        ("triton_poi_fused_cudnn_batch_norm_0", False),
        ("_ZN2at6native15my6cudnnEv", False),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", False),
        ("matmul", False),
    ],
)
def test_names_of_closed_kernels(symbol: str, closed: bool) -> None:
    assert closed_symbol(symbol) == closed
    if closed:
        store = ImageStore()
        store.loaded(5, IMAGE)
        with pytest.raises(
            UnsupportedError, match=r"\[closed-library\] .* is named like a closed NVIDIA library's"
        ):
            find_image(symbol, facts(5), store)


class CompiledKernel:
    """Looks like Triton's object of that name."""

    def __init__(self, function: int, image: bytes) -> None:
        self.function, self.asm = function, {"cubin": image}


def test_a_triton_object_is_found_by_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "mapped_files", list)
    kept = [CompiledKernel(0x1234, IMAGE), CompiledKernel(0x9999, changed(IMAGE))]
    with pytest.raises(TraceError, match="image-not-found"):
        find_image("matmul", facts(99), ImageStore())
    monkeypatch.setitem(sys.modules, "triton", object())  # type: ignore[arg-type]
    found = find_image("matmul", facts(99), ImageStore())
    assert found.data == kept[0].asm["cubin"] and found.origin == "Triton's compiled kernel"


class RawModule:
    """Looks like CuPy's object of that name."""

    def __init__(self, path: Path) -> None:
        self.file_path = str(path)


def test_cupy_modules_and_its_cache_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "a.cubin").write_bytes(b"0123456789abcdef" * 2 + changed(IMAGE))
    (cache / "b.txt").write_bytes(IMAGE)
    (cache / "c.cubin").write_bytes(b"something else")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(cache))
    assert list(cupy_images("matmul")) == []
    monkeypatch.setitem(sys.modules, "cupy", object())  # type: ignore[arg-type]
    assert list(cupy_images("matmul")) == [changed(IMAGE)]
    kept = RawModule(EXAMPLE)
    assert list(cupy_images("matmul")) == [Path(kept.file_path).read_bytes(), changed(IMAGE)]
    assert list(cupy_images("nothing")) == []


class Queries:
    def __init__(self, is_kernel: bool) -> None:
        self.is_kernel = is_kernel

    def handle_library(self, handle: int) -> int | None:
        return 50 if self.is_kernel else None

    def handle_module(self, handle: int) -> int | None:
        return None if self.is_kernel or handle == 0xBAD else 60

    def kernel_attribute(self, kernel: int, attribute: int, device: int) -> int | None:
        return {4: 32, 6: 90, 8: 100}.get(attribute)

    def function_attribute(self, function: int, attribute: int) -> int | None:
        return {4: 33, 6: 80, 9: 50}.get(attribute)


def test_facts_come_from_the_call_that_suits_the_handle() -> None:
    library_facts: Any = HandleFacts.read(Queries(True), 1, 0, (8, 9))  # type: ignore[arg-type]
    assert (library_facts.owner, library_facts.registers, library_facts.attributes) == (50, 32, ((8, 100),))
    module_facts: Any = HandleFacts.read(Queries(False), 1, 0, (8, 9))  # type: ignore[arg-type]
    assert (module_facts.owner, module_facts.registers, module_facts.attributes) == (60, 33, ((9, 50),))
    with pytest.raises(TraceError, match=r"\[handle-unknown\]"):
        HandleFacts.read(Queries(False), 0xBAD, 0, ())  # type: ignore[arg-type]
    assert latefind.FoundImage(b"x", "y").origin == "y"
