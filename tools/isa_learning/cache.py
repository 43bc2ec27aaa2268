"""What probing and compiling cost is paid once: answers kept on disk, keyed by tool version and architecture.

The cache only saves time. A run gives the same table with it, without it and with a part of it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "isa-cache"


class Answers:
    """Texts of words (None: no instruction) in a SQLite file ``<name>.sqlite`` of ``folder``; one writer at a time."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / f"{name}.sqlite", timeout=120)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("CREATE TABLE IF NOT EXISTS answers (word BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID")
        self._db.execute("CREATE TEMP TABLE wanted (word BLOB PRIMARY KEY) WITHOUT ROWID")

    def get(self, words: Sequence[int]) -> dict[int, str | None]:
        """The known ones among ``words``."""
        with self._db:
            self._db.execute("DELETE FROM wanted")
            self._db.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", ((_key(w),) for w in words))
            rows = self._db.execute("SELECT word, text FROM wanted JOIN answers USING (word)").fetchall()
        return {int.from_bytes(word, "big"): text for word, text in rows}

    def put(self, answers: Sequence[tuple[int, str | None]]) -> None:
        """Remember answers."""
        with self._db:
            self._db.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", ((_key(w), t) for w, t in answers))


def _key(word: int) -> bytes:
    return word.to_bytes(16, "big")


def words_once(name: str, make: Callable[[], set[int]], folder: Path = FOLDER) -> set[int]:
    """``make()``, or what it gave when it was last called under the same ``name`` (which must name all inputs)."""
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.words"
    if path.is_file():
        data = path.read_bytes()
        return {int.from_bytes(data[i:i + 16], "little") for i in range(0, len(data), 16)}
    words = make()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(b"".join(w.to_bytes(16, "little") for w in sorted(words)))
    temporary.replace(path)
    return words
