"""CUPTI's MODULE_LOADED callback without Python.

The driver makes that callback with its locks held. A callback written in Python waits for the interpreter's lock there,
and whoever holds that one in a driver call of its own (PyTorch makes streams so) then waits for the driver's: both for
ever. So this one callback is a few instructions of machine code, made here, that copy the image and push it on a list;
Python takes the list when no lock is held. All other callbacks are handed on as they come. x86-64 Linux only: elsewhere
:meth:`Catcher.make` gives None.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from dataclasses import dataclass

_READ_EXECUTE = 1 | 4
_NEXT, _THREAD, _SIZE, _IMAGE = 0, 8, 16, 32
"""Places in a node: the one pushed before it, the thread's id, the image's size, the image."""


@dataclass(frozen=True, slots=True)
class Caught:
    """An image that the driver loaded, and the thread (``threading.get_ident``) that made it do so."""

    thread: int
    image: bytes


@dataclass(frozen=True, slots=True)
class _Jump:
    opcode: int
    label: str


def _assembled(parts: list[str | bytes | _Jump]) -> bytes:
    """Machine code of hexadecimal text, bytes, labels ("name:") and short jumps."""
    places: dict[str, int] = {}
    at = 0
    for part in parts:
        if isinstance(part, str) and part.endswith(":"):
            places[part[:-1]] = at
        else:
            at += 2 if isinstance(part, _Jump) else len(part if isinstance(part, bytes) else bytes.fromhex(part))
    code = bytearray()
    for part in parts:
        if isinstance(part, _Jump):
            code += struct.pack("<Bb", part.opcode, places[part.label] - len(code) - 2)
        elif isinstance(part, bytes):
            code += part
        elif not part.endswith(":"):
            code += bytes.fromhex(part)
    return bytes(code)


def callback_code(python: int, malloc: int, memcpy: int, head: int) -> bytes:
    """The callback: (void *user, int domain, uint32_t id, const void *data), System V calling convention."""
    equal, unequal = 0x74, 0x75
    word = struct.Struct("<Q").pack
    return _assembled(
        [
            "83FE03",  # cmp esi, 3: the resource domain
            _Jump(equal, "resource"),
            "python:",
            b"\x48\xb8" + word(python),  # mov rax, python
            "FFE0",  # jmp rax
            "out:",
            "C3",  # ret
            "resource:",
            "83FA06",  # cmp edx, 6: MODULE_LOADED
            _Jump(unequal, "python"),
            "488B4110",  # mov rax, [rcx+16]: descriptor
            "4885C0",  # test rax, rax
            _Jump(equal, "out"),
            "4C8B4008",  # mov r8, [rax+8]: size
            "4C8B4810",  # mov r9, [rax+16]: image
            "4D85C0",  # test r8, r8
            _Jump(equal, "out"),
            "4D85C9",  # test r9, r9
            _Jump(equal, "out"),
            "53 4154 4155",  # push rbx, r12, r13: now the stack is on 16 bytes again
            "4C89C3",  # mov rbx, r8
            "4D89CC",  # mov r12, r9
            "488D7B20",  # lea rdi, [rbx+32]
            b"\x48\xb8" + word(malloc),
            "FFD0",  # call rax
            "4885C0",  # test rax, rax
            _Jump(equal, "leave"),
            "4989C5",  # mov r13, rax
            "49895D10",  # mov [r13+16], rbx
            "64488B042510000000",  # mov rax, fs:[16]: the thread's id
            "49894508",  # mov [r13+8], rax
            "498D7D20",  # lea rdi, [r13+32]
            "4C89E6",  # mov rsi, r12
            "4889DA",  # mov rdx, rbx
            b"\x48\xb8" + word(memcpy),
            "FFD0",  # call rax
            b"\x48\xb9" + word(head),  # mov rcx, head
            "again:",
            "488B01",  # mov rax, [rcx]
            "49894500",  # mov [r13], rax
            "F04C0FB129",  # lock cmpxchg [rcx], r13
            _Jump(unequal, "again"),
            "leave:",
            "415D 415C 5B",  # pop r13, r12, rbx
            "C3",  # ret
        ]
    )


class Catcher:
    """The callback and the list that it fills; lives as long as the process, since a thread may be inside it."""

    def __init__(self, python: int) -> None:
        """``python``: address of the callback that gets everything else. Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        self._library = library
        library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
        malloc, memcpy = (ctypes.cast(function, ctypes.c_void_p).value for function in (library.malloc, library.memcpy))
        self._head = ctypes.c_uint64(0)
        self._taken = 0  # newest node that was taken: it stays, so that its address comes to no other
        code = callback_code(python, malloc or 0, memcpy or 0, ctypes.addressof(self._head))
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._memory.write(code)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if library.mprotect(self.address, mmap.PAGESIZE, _READ_EXECUTE):
            raise OSError(ctypes.get_errno(), "no memory for machine code")

    @classmethod
    def make(cls, python: int) -> Catcher | None:
        """None where the machine is another one, or gives no memory for code."""
        if platform.machine() != "x86_64" or sys.platform != "linux" or sys.maxsize < 1 << 32:
            return None
        try:
            return cls(python)
        except (OSError, ValueError, AttributeError):
            return None

    def take(self) -> list[Caught]:
        """Images since the last call, oldest first. Called by one thread at a time."""
        newest = node = self._head.value
        found, done = [], []
        while node != self._taken:
            after, thread, size = (ctypes.c_uint64.from_address(node + at).value for at in (_NEXT, _THREAD, _SIZE))
            found.append(Caught(thread, ctypes.string_at(node + _IMAGE, size)))
            done.append(node)
            node = after
        if done:
            for old in (*done[1:], self._taken):
                self._library.free(old or None)
            self._taken = newest
        return found[::-1]
