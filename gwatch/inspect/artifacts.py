"""What a user points at, opened: files, libraries, packages, wheels, archives, caches, directories.

:func:`open_artifact` yields every cubin with the path that leads to it (``model.pt2!data/model/x.cubin``,
``lib.so@0x1f40``), every member that is no cubin, and texts that tell how kernels were made and launched
(AOTInductor wrappers, Inductor's Python files, Triton's intermediate code and metadata).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gwatch.cuda.binary.fatbin import MAX_IMAGE
from gwatch.errors import CubinError, CubinNotFound
from gwatch.inspect.embedded import embedded_symbols
from gwatch.inspect.reader import ARCHIVE_BOMB, Budget, Reader, unreadable
from gwatch.inspect.scan import Found, is_cubin, scan
from gwatch.inspect.whole import is_cut_off

if TYPE_CHECKING:
    import zipfile

TEXT_LIMIT = 64 << 20
_NESTING = 8
_TEXTS = (".cpp", ".py", ".ttir", ".ttgir", ".source", ".json", ".h", ".cu")
_BESIDE = (".json", ".ttir", ".ttgir", ".source")
"""What Triton's cache keeps beside a cubin, under the same name."""
_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_ENCRYPTED = 1
"""Flag of a zip's member."""
# What of it is looked through for magic numbers when the content alone does not say what it is.
_BINARY = (
    ".so",
    ".dll",
    ".pyd",
    ".exe",
    ".o",
    ".obj",
    ".a",
    ".lib",
    ".fatbin",
    ".bin",
    ".cubin",
    ".node",
    "",
)
_ELF, _PE, _AR = b"\x7fELF", b"MZ", b"!<arch>\n"


class Image(NamedTuple):
    """A cubin: where it is, how it is kept there (file, member, fatbin, embedded), and its bytes. ``symbol``: the name
    by which the library's own code refers to it, "" where it has none."""

    path: str
    kind: str
    data: bytes
    symbol: str = ""


class Skipped(NamedTuple):
    """A member that holds no readable cubin, by name and reason. ``unread``: it may hold some, but damage, or a missing
    package, kept it from being read."""

    path: str
    reason: str
    unread: bool = False


class Text(NamedTuple):
    """A text member that may describe kernels or launches."""

    path: str
    text: str


Item = Image | Skipped | Text


def open_artifact(path: str | os.PathLike[str]) -> Iterator[Item]:
    """Everything in ``path``, in a fixed order. Texts of an archive or directory come before its cubins; those that
    Triton's cache keeps beside a cubin come with it.

    Raises CubinNotFound, or CubinError [artifact-unreadable] or [archive-bomb] for the path itself; damage inside it
    becomes a :class:`Skipped` item.
    """
    if not os.fspath(path):  # pathlib would take it for the current folder
        raise CubinNotFound("artifact-not-found", "an empty path names no file", "for the current folder write .")
    start = Path(path)
    if start.is_dir():
        yield from _directory(start)
        return
    if not start.exists():
        raise CubinNotFound("artifact-not-found", f"no such file or directory: {start}", "check the path")
    with Reader.of_file(start) as reader:
        if is_cubin(reader):
            yield from _beside(start)
        yield from _reader(reader, str(start), "file", 0, Budget(str(start), reader.size))


def _beside(cubin: Path) -> Iterator[Item]:
    """Texts of the same folder that may describe a cubin that was named by itself."""
    for suffix in _BESIDE:
        path = cubin.with_suffix(suffix)
        if path != cubin and path.is_file():
            with suppress(CubinError), Reader.of_file(path) as reader:  # nobody asked for it
                yield from (item for item in _text(reader, str(path)) if isinstance(item, Text))


def _directory(root: Path) -> Iterator[Item]:
    files: list[Path] = []
    unread: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unread.append):
        folders.sort()
        for name in folders:
            if (Path(folder) / name).is_symlink():
                yield Skipped(str(Path(folder) / name), "symbolic link to a folder, not followed")
        files += [Path(folder) / name for name in sorted(names)]
    for error in unread:
        if Path(error.filename) == root:
            raise unreadable(error.filename, error) from None
        yield Skipped(str(error.filename), str(unreadable(error.filename, error)), True)
    for wanted in (True, False):
        for path in files:
            if (path.suffix in _TEXTS) != wanted:
                continue
            if path.is_symlink() and not path.exists():
                yield Skipped(str(path), "symbolic link that leads nowhere")
                continue
            try:
                with Reader.of_file(path) as reader:
                    yield from _reader(reader, str(path), "file", 0, Budget(str(path), reader.size))
            except CubinError as error:
                yield Skipped(str(path), str(error), True)


def _reader(reader: Reader, path: str, kind: str, depth: int, budget: Budget) -> Iterator[Item]:
    head = reader.read(0, 8)
    suffix = Path(path.rsplit("!", 1)[-1]).suffix.lower()
    if not head:
        yield Skipped(path, "it is empty")
    elif head[:4] == _ZIP or head[:4] == _EMPTY_ZIP:
        yield from _zip(reader, path, depth, budget)
    elif is_cubin(reader):
        if reader.size > MAX_IMAGE:
            yield Skipped(path, f"cubin of {reader.size} bytes, more than {MAX_IMAGE}", True)
        else:
            yield Image(path, kind, reader.read(0, reader.size))
    elif suffix in _TEXTS:
        yield from _text(reader, path)
    elif head[:4] == _ELF or head[:2] == _PE or head[:8] == _AR or suffix in _BINARY or ".so." in path:
        yield from _binary(reader, path, depth, budget)
    elif _ends_in_zip(reader):
        yield from _zip(reader, path, depth, budget)
    else:
        yield Skipped(path, "not a cubin, library, archive or kernel source")


def _ends_in_zip(reader: Reader) -> bool:
    """Whether an archive lies behind other bytes, as in programs that unpack themselves and in Python's zipapps."""
    import zipfile

    if not zipfile.is_zipfile(reader.stream):
        return False
    try:  # a program that reads archives holds their magic numbers, too
        return bool(zipfile.ZipFile(reader.stream).infolist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def _text(reader: Reader, path: str) -> Iterator[Item]:
    if reader.size > TEXT_LIMIT:
        yield Skipped(path, f"text of {reader.size} bytes, more than {TEXT_LIMIT}")
    else:
        yield Text(path, reader.read(0, reader.size).decode("utf-8", "replace"))


def _binary(reader: Reader, path: str, depth: int, budget: Budget) -> Iterator[Item]:
    anything = False
    symbols: dict[int, str] | None = None
    for found in scan(reader):
        anything = True
        where = f"{path}@{found.offset:#x}"
        if isinstance(found, Found):
            if symbols is None:
                symbols = embedded_symbols(reader)
            kind = "fatbin" if found.kind == "fatbin" else "embedded"
            yield Image(where, kind, found.data, symbols.get(found.start, ""))
        else:
            yield Skipped(where, f"{found.what}: {found.reason}", found.unread)
    if is_cut_off(reader):
        yield Skipped(path, "it is cut off: its headers place bytes behind its end", True)
    elif _ends_in_zip(reader):
        yield from _zip(reader, path, depth, budget)
    elif not anything:
        yield Skipped(path, "no cubin and no fat binary inside")


def _zip(reader: Reader, path: str, depth: int, budget: Budget) -> Iterator[Item]:
    import zipfile

    if depth >= _NESTING:
        yield Skipped(path, f"archives nested more than {_NESTING} deep", True)
        return
    try:
        archive = zipfile.ZipFile(reader.stream)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        yield Skipped(path, f"damaged archive: {error}", True)
        return
    with archive:
        members = [m for m in archive.infolist() if not m.is_dir()]
        for wanted in (True, False):
            for member in members:
                if (Path(member.filename).suffix in _TEXTS) == wanted:
                    yield from _member(archive, member, f"{path}!{member.filename}", depth, budget)


def _member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str, depth: int, budget: Budget
) -> Iterator[Item]:
    import zipfile

    budget.admit(member.file_size)
    if member.flag_bits & _ENCRYPTED:
        yield Skipped(path, "it is encrypted", True)
        return
    try:
        with archive.open(member) as stream:
            inner = Reader.spooled(stream, path, budget)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        yield Skipped(path, f"cannot be unpacked: {error}", True)
        return
    with inner:
        try:
            yield from _reader(inner, path, "member", depth + 1, budget)
        except CubinError as error:
            if error.code == ARCHIVE_BOMB:
                raise
            yield Skipped(path, str(error), True)
