"""Random access to bytes that may be larger than memory: a file, or a member of an archive.

A member of an archive is unpacked once, into memory while it is small and into a temporary file when it is
not, so that a wheel of any size is looked through in bounded memory.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import IO

from gwatch.errors import CubinError

IN_MEMORY = 32 << 20
"""Members up to this many bytes are kept in memory."""
_COPY = 1 << 20


class Reader:
    """Bytes with a name; ``read`` never returns fewer bytes than asked for without saying so by its length."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.name = name
        self.stream = stream
        stream.seek(0, os.SEEK_END)
        self.size = stream.tell()

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Reader:
        """A file. Raises CubinError [artifact-unreadable]."""
        try:
            return cls(open(path, "rb"), os.fspath(path))
        except OSError as error:
            raise CubinError(
                "artifact-unreadable", f"cannot read {os.fspath(path)}: {error.strerror}"
            ) from None

    @classmethod
    def spooled(cls, stream: IO[bytes], name: str) -> Reader:
        """The rest of ``stream``, unpacked; not seekable streams become so."""
        import shutil
        import tempfile

        spool = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 (the Reader closes it)
        try:
            shutil.copyfileobj(stream, spool, _COPY)
        except BaseException:
            spool.close()
            raise
        return cls(spool, name)

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset`` on, fewer at the end."""
        self.stream.seek(offset)
        return self.stream.read(count)

    def close(self) -> None:
        """Give file or memory back."""
        self.stream.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
