"""Writing files: whole or not at all, and only into folders that are there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from gwatch.errors import UsageError


def need_folder(output: str | os.PathLike[str]) -> None:
    """Refuse an output whose folder is not there: a mistyped path should not become one.

    Raises UsageError ``[output-folder]``.
    """
    folder = Path(output).parent
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise UsageError("output-folder", f"cannot write {output}: {folder} {what}", "make the folder first")


def write_atomically(path: Path, data: bytes | Iterable[bytes], *, follow: bool = True) -> None:
    """Write ``data``, whole or in pieces, to ``path`` through a temporary file in the same directory; ``follow`` and
    errors as in :func:`write_together`."""
    write_together([(path, data)], follow=follow)


def write_together(files: Sequence[tuple[Path, bytes | Iterable[bytes]]], *, follow: bool = True) -> None:
    """Write several files, or none: each through a temporary file in its directory, renamed once all are there.

    A link is followed, because a user named it; without ``follow``, for names that gwatch makes up in a folder that
    others may write to, it is replaced. Raises UsageError [output-folder], [write-failed], also for what is no regular
    file: a rename would put one in the place of a device.
    """
    import secrets

    ready: list[tuple[Path, Path]] = []
    path = Path()
    try:
        try:
            for path, data in files:
                need_folder(path)
                target = Path(os.path.realpath(path)) if follow else path
                if target.exists() and not target.is_file():
                    what = "a directory" if target.is_dir() else "no regular file"
                    raise UsageError("write-failed", f"cannot write {path}: it is {what}", "name a file")
                temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}"
                ready.append((temporary, target))
                with open(temporary, "xb") as stream:
                    stream.writelines([data] if isinstance(data, bytes) else data)
            for temporary, target in ready:
                os.replace(temporary, target)
        except BaseException:
            for temporary, _ in ready:
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError("write-failed", f"cannot write {path}: {error.strerror}", "check the directory") from error
