"""Cubins are found wherever they are kept, with the right bytes; everything else is named."""

from __future__ import annotations

import hashlib
import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from inspect_support import COPY_CUBIN, COPY_NAME, FIXTURES, WRAPPER, cuobjdump, fatbin, host_elf, make_pt2

from gwatch.cuda.binary.fatbin import iter_fatbin_images
from gwatch.errors import CubinError, CubinNotFound
from gwatch.inspect.artifacts import Image, Skipped, Text, open_artifact
from gwatch.inspect.reader import Reader
from gwatch.inspect.run import Request, inspect
from gwatch.inspect.scan import WINDOW, Found, cubin_size, scan


def images(path: Path) -> list[Image]:
    return [item for item in open_artifact(path) if isinstance(item, Image)]


def skipped(path: Path) -> list[Skipped]:
    return [item for item in open_artifact(path) if isinstance(item, Skipped)]


def test_a_cubin_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(COPY_CUBIN)
    (found,) = images(path)
    assert (found.path, found.kind, found.data) == (str(path), "file", COPY_CUBIN)


def test_a_package_yields_its_cubins_and_the_text_before_them(tmp_path: Path) -> None:
    path = make_pt2(tmp_path / "m.pt2", WRAPPER, {COPY_NAME: COPY_CUBIN})
    kinds = [type(item) for item in open_artifact(path)]
    assert kinds.index(Text) < kinds.index(Image)
    (found,) = images(path)
    assert found.path == f"{path}!copy/data/aotinductor/model/{COPY_NAME}"
    assert found.kind == "member"
    assert found.data == COPY_CUBIN


def test_a_cubin_inside_a_wrapper_library_inside_a_package_is_found(tmp_path: Path) -> None:
    path = make_pt2(tmp_path / "m.pt2", WRAPPER, {"model.wrapper.so": host_elf(COPY_CUBIN)})
    (found,) = images(path)
    assert found.kind == "embedded"
    assert found.path.startswith(f"{path}!copy/data/aotinductor/model/model.wrapper.so@0x")
    assert found.data == COPY_CUBIN


@pytest.mark.parametrize("packing", ["", "lz4", "zstd"])
def test_members_of_a_fat_binary_are_unpacked(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "x.fatbin"
    path.write_bytes(fatbin([(90, COPY_CUBIN, packing)]))
    (found,) = images(path)
    assert found.data == COPY_CUBIN
    assert found.path == f"{path}@0x10"


@pytest.mark.parametrize("packing", ["", "lz4", "zstd"])
@pytest.mark.parametrize("shift", [0, 1, 4, 7])
def test_a_fat_binary_is_found_at_any_offset(tmp_path: Path, packing: str, shift: int) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(host_elf(bytes(shift) + fatbin([(90, COPY_CUBIN, packing), (80, COPY_CUBIN, packing)])))
    assert [(image.kind, image.data) for image in images(path)] == [("fatbin", COPY_CUBIN)] * 2


def test_embedded_kernels_have_the_names_that_the_library_uses() -> None:
    found = images(FIXTURES / "embedded.so")
    names = [("embedded", "copy_kernel_0"), ("fatbin", "copy_kernel_1")]
    assert [(image.kind, image.symbol) for image in found] == names
    assert found[0].data == COPY_CUBIN
    assert found[1].data == (FIXTURES / "triton" / "in_unaligned.cubin").read_bytes()


def test_a_library_agrees_with_cuobjdump(tmp_path: Path) -> None:
    library = FIXTURES / "libtwo.so"
    listed = [line.split(": ")[1] for line in cuobjdump("-lelf", library).splitlines()]
    cuobjdump("-xelf", "all", library, folder=tmp_path)
    theirs = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in listed]
    ours = [hashlib.sha256(image.data).hexdigest() for image in images(library)]
    assert ours == theirs
    assert len(ours) == 2
    assert [s.reason for s in skipped(library)] == ["ptx for sm_90: no machine code"]


def test_damage_is_named_and_the_rest_still_found(tmp_path: Path) -> None:
    broken = bytearray(fatbin([(90, COPY_CUBIN, "lz4"), (80, COPY_CUBIN, "")]))
    broken[16 + 16 : 16 + 20] = (500).to_bytes(4, "little")  # the compressed size: cuts the stream off
    path = tmp_path / "x.so"
    path.write_bytes(host_elf(bytes(broken)))
    found = images(path)
    assert [image.data for image in found] == [COPY_CUBIN]
    (problem,) = skipped(path)
    assert "fatbin-corrupt" in problem.reason
    assert "sm_90" in problem.reason


def test_a_member_that_points_outside_its_container_ends_it_by_name(tmp_path: Path) -> None:
    data = bytearray(fatbin([(90, COPY_CUBIN, "")]))
    data[16 + 8 : 16 + 16] = (1 << 40).to_bytes(8, "little")
    path = tmp_path / "x.fatbin"
    path.write_bytes(data)
    assert [s.reason for s in skipped(path)] == ["fat binary member: its header points outside the container"]


@pytest.mark.parametrize("packing", ["", "lz4", "zstd"])
@pytest.mark.parametrize("ahead", [0, 4, 0x100])
def test_a_fat_binary_that_is_cut_off_is_named_wherever_it_ends(tmp_path: Path, packing: str, ahead: int) -> None:
    one, two = (fatbin([(90, COPY_CUBIN, packing)] * count) for count in (1, 2))
    path = tmp_path / "x.bin"
    for length, whole, at in (
        (7, 0, 7), (12, 0, 12), (16, 0, 16), (20, 0, 16), (60, 0, 16), (100, 0, 16), (len(one) - 1, 0, 16),
        (len(one), 1, len(one)), (len(one) + 30, 1, len(one)), (len(two) - 1, 1, len(one)),
    ):  # fmt: skip
        path.write_bytes(bytes(ahead) + two[:length])
        assert [image.data for image in images(path)] == [COPY_CUBIN] * whole
        (cut,) = skipped(path)
        assert (cut.path, cut.unread) == (f"{path}@{ahead + at:#x}", True)
        assert cut.reason == "fat binary: it is cut off here, or its header gives a wrong size"
    path.write_bytes(bytes(ahead) + two)
    assert len(images(path)) == 2 and not skipped(path)


@pytest.mark.parametrize("packing", ["", "lz4", "zstd"])
@pytest.mark.parametrize("ahead", [0, 4, 0x100])
def test_who_iterates_over_a_fat_binary_that_is_cut_off_is_told_so(packing: str, ahead: int) -> None:
    one, two = (fatbin([(90, COPY_CUBIN, packing)] * count) for count in (1, 2))
    for length, whole in (
        (7, 0), (12, 0), (16, 0), (60, 0), (len(one) - 1, 0), (len(one), 1), (len(one) + 30, 1), (len(two) - 1, 1)
    ):  # fmt: skip
        found = []
        with pytest.raises(CubinError, match=rf"\[fatbin-truncated\].*offset {ahead:#x} is cut off"):
            found.extend(iter_fatbin_images(bytes(ahead) + two[:length]))
        assert [image for _, image in found] == [COPY_CUBIN] * whole
    assert len([*iter_fatbin_images(bytes(ahead) + two)]) == 2
    # The magic number by chance, in other data.
    assert not [*iter_fatbin_images(bytes(ahead) + one[:4] + bytes(100) + one[:6] + b"\1" * 100)]


def test_containers_behind_one_with_too_large_a_size_are_still_found(tmp_path: Path) -> None:
    first = bytearray(fatbin([(90, COPY_CUBIN, "zstd")]))
    first[8:16] = (1 << 40).to_bytes(8, "little")
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(first) + fatbin([(80, COPY_CUBIN, "zstd")]))
    assert [(image.path, image.data) for image in images(path)] == [
        (f"{path}@0x10", COPY_CUBIN),
        (f"{path}@{len(first) + 16:#x}", COPY_CUBIN),
    ]
    assert [(item.path, item.unread) for item in skipped(path)] == [(f"{path}@{len(first):#x}", True)]


def test_a_fat_binary_whose_header_is_damaged_and_an_embedded_cubin_cut_off_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.fatbin"
    path.write_bytes(b"\x50\xed\x55\xba\xff" + fatbin([(90, COPY_CUBIN, "zstd")])[5:])
    assert [(item.reason, item.unread) for item in skipped(path)] == [("fat binary: its header is damaged", True)]
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(24) + COPY_CUBIN[:-40])
    assert not images(path)
    (cut,) = skipped(path)
    assert cut == Skipped(f"{path}@0x18", "cubin: it is cut off, or its headers are damaged", True)


def test_the_magic_of_a_fat_binary_in_code_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(8) + fatbin([])[:4] + bytes(range(1, 40)) + b"\x7fELF\x02\x01\x01" + bytes(70))
    assert [(item.reason, item.unread) for item in skipped(path)] == [("no cubin and no fat binary inside", False)]


def ar(*members: bytes) -> bytes:
    """A static archive, as ar writes it."""
    out = b"!<arch>\n"
    for member in members:
        out += b"x.o/".ljust(48) + str(len(member)).encode().ljust(10) + b"`\n" + member + b"\n" * (len(member) % 2)
    return out


def pe(content: bytes) -> bytes:
    """A Windows library of one section."""
    head = b"MZ".ljust(60, b"\0") + (64).to_bytes(4, "little")
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 0, 0)
    return head + coff + struct.pack("<8sIIIIIIHHI", b".nv", 0, 0, len(content), 128, 0, 0, 0, 0, 0) + content


CUT = "it is cut off: its headers place bytes behind its end"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.so", (FIXTURES / "libtwo.so").read_bytes()),
        ("x.so", (FIXTURES / "embedded.so").read_bytes()),
        ("x.a", ar(b"abc", bytes(8) + fatbin([(90, COPY_CUBIN, "zstd")]))),
        ("x.dll", pe(fatbin([(90, COPY_CUBIN, "zstd")]))),
    ],
)
def test_a_library_that_is_cut_off_is_named_wherever_it_ends(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert all(item.reason != CUT for item in skipped(path))
    whole = {image.data for image in images(path)}
    for length in (70, len(data) // 3, len(data) // 2, len(data) - 9, len(data) - 1):
        path.write_bytes(data[:length])
        assert Skipped(str(path), CUT, True) in skipped(path)
        assert {image.data for image in images(path)} <= whole


def test_an_image_across_a_window_is_found(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(WINDOW - 3) + COPY_CUBIN + bytes(50))
    with Reader.of_file(path) as reader:
        (found,) = scan(reader)
    assert isinstance(found, Found)
    assert (found.offset, found.data) == (WINDOW - 3, COPY_CUBIN)


def test_the_size_of_an_image_comes_from_its_headers(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(COPY_CUBIN + b"more")
    with Reader.of_file(path) as reader:
        assert cubin_size(reader) == len(COPY_CUBIN)
    path.write_bytes(COPY_CUBIN[:-40])
    with Reader.of_file(path) as reader:
        assert cubin_size(reader) is None


def test_archives_inside_archives(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/lib.so", host_elf(fatbin([(90, COPY_CUBIN, "zstd")])))
        archive.writestr("pkg/data.npy", b"\x93NUMPY")
    outer = tmp_path / "wheels.zip"
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("one.whl", inner.getvalue())
    (found,) = images(outer)
    assert found.path.startswith(f"{outer}!one.whl!pkg/lib.so@0x")
    assert found.data == COPY_CUBIN
    assert [s.reason for s in skipped(outer)] == ["not a cubin, library, archive or kernel source"]


def test_a_damaged_archive_and_a_locked_member_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    assert skipped(path)[0].reason.startswith("damaged archive")
    good = make_pt2(tmp_path / "m.pt2", WRAPPER, {COPY_NAME: COPY_CUBIN})
    data = bytearray(good.read_bytes())
    at = data.index(COPY_CUBIN[:64])
    data[at + 200] ^= 0xFF
    good.write_bytes(data)
    assert any("cannot be unpacked" in s.reason for s in skipped(good))


def test_a_folder_is_walked_in_order_and_broken_links_are_named(tmp_path: Path) -> None:
    for name in ("b/k.cubin", "a/k.cubin"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(COPY_CUBIN)
    (tmp_path / "c.so").symlink_to(tmp_path / "nowhere.so")
    assert [image.path for image in images(tmp_path)] == [
        str(tmp_path / "a/k.cubin"),
        str(tmp_path / "b/k.cubin"),
    ]
    assert [s.reason for s in skipped(tmp_path)] == ["symbolic link that leads nowhere"]


def test_a_missing_path_is_an_error() -> None:
    with pytest.raises(CubinNotFound, match="artifact-not-found"):
        list(open_artifact("/nowhere/at/all"))


def test_copies_are_folded_and_extracted_once(tmp_path: Path) -> None:
    for name in ("a.cubin", "b.cubin"):
        (tmp_path / name).write_bytes(COPY_CUBIN)
    report = inspect([tmp_path], extract=tmp_path / "out")
    (image,) = report.images
    assert image.path == str(tmp_path / "a.cubin")
    assert image.also_at == [str(tmp_path / "b.cubin")]
    (written,) = report.extracted
    assert Path(written).read_bytes() == COPY_CUBIN
    assert Path(written).name == f"a-{image.sha256[:12]}.cubin"


def test_text_nested_beyond_reason_is_no_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "kernel.json").write_text("[" * 200_000)
    (folder / "kernel.cubin").write_bytes(COPY_CUBIN)
    report = inspect([folder])
    assert [image.problem for image in report.images] == [""]


def test_an_unknown_architecture_is_named_and_still_extracted(tmp_path: Path) -> None:
    old = bytearray(COPY_CUBIN)
    old[48:52] = (0x06003502).to_bytes(4, "little")  # e_flags: SM 53
    (tmp_path / "old.cubin").write_bytes(old)
    report = inspect([tmp_path / "old.cubin"], Request(), extract=tmp_path / "out")
    (image,) = report.images
    assert "arch-unknown" in image.problem
    assert image.kernels == []
    assert Path(report.extracted[0]).read_bytes() == bytes(old)


def test_a_large_library_is_scanned_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.so"
    with open(path, "wb") as stream:
        stream.write(host_elf(b""))
        stream.truncate(400 << 20)
        stream.seek(300 << 20)
        stream.write(COPY_CUBIN)
    tracemalloc.start()
    try:
        (found,) = images(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.data == COPY_CUBIN
    assert peak < 40 << 20
