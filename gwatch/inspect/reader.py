"""Random access to bytes that may be larger than memory: a file, or a member of an archive.

A member of an archive is unpacked once, into memory while it is small and into a temporary file when it is
not, so that a wheel of any size is looked through in bounded memory.
"""

from __future__ import annotations

import os
import stat
from types import TracebackType
from typing import IO

from gwatch.errors import CubinError

IN_MEMORY = 32 << 20
"""Members up to this many bytes are kept in memory."""
_COPY = 1 << 20
ARCHIVE_BOMB = "archive-bomb"
_LEAST, _RATIO = 1 << 30, 200


def unreadable(path: str, error: OSError) -> CubinError:
    """CubinError ``[artifact-unreadable]`` for a file or folder that the system doesn't let us read."""
    return CubinError("artifact-unreadable", f"cannot read {path}: {error.strerror}")


class Budget:
    """What may be unpacked from one artifact, nested archives included: 200 times its size, and a gibibyte at least.
    Real packages unpack to ten times their size; more than this is an archive made to fill disks."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.limit = self.left = max(_LEAST, _RATIO * size)

    def take(self, count: int) -> None:
        """Count ``count`` bytes. Raises CubinError [archive-bomb] when they are too many."""
        self.left -= count
        if self.left < 0:
            raise self._bomb("unpacks")

    def admit(self, count: int) -> None:
        """Raises CubinError [archive-bomb] where a member that says it has ``count`` bytes can't be unpacked."""
        if count > self.left:
            raise self._bomb("says that it unpacks")

    def _bomb(self, does: str) -> CubinError:
        return CubinError(
            ARCHIVE_BOMB,
            f"{self.name} {does} to more than {self.limit} bytes, {_RATIO} times its size",
            "unpack it yourself if it is what it should be",
        )


class Reader:
    """Bytes with a name; ``read`` never returns fewer bytes than asked for without saying so by its length."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.name = name
        self.stream = stream
        stream.seek(0, os.SEEK_END)
        self.size = stream.tell()

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Reader:
        """A regular file. Raises CubinError [artifact-unreadable]."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe or a device may never end
                where = os.fspath(path)
                raise CubinError("artifact-unreadable", f"{where} is not a regular file", "name the file itself")
            return cls(open(path, "rb"), os.fspath(path))
        except OSError as error:
            raise unreadable(os.fspath(path), error) from None

    @classmethod
    def spooled(cls, stream: IO[bytes], name: str, budget: Budget) -> Reader:
        """The rest of ``stream``, unpacked within ``budget``; not seekable streams become so."""
        import tempfile

        spool = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 (the Reader closes it)
        try:
            while block := stream.read(_COPY):
                budget.take(len(block))
                spool.write(block)
        except BaseException:
            spool.close()
            raise
        return cls(spool, name)

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset`` on, fewer at the end, none behind it (offsets come from headers)."""
        if offset >= self.size:
            return b""
        self.stream.seek(offset)
        return self.stream.read(min(count, self.size - offset))

    def close(self) -> None:
        """Give file or memory back."""
        self.stream.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
