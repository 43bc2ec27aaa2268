"""The machine-code callback: images caught without the interpreter's lock, everything else handed on."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fakecupti import FakeCupti, load_arguments

from gwatch.cuda import catcher, cupti
from gwatch.cuda.capture import Hooks
from gwatch.cuda.catcher import Catcher, Caught

HERE = platform.machine() == "x86_64" and sys.platform == "linux"
needs_code = pytest.mark.skipif(not HERE, reason="machine code for x86-64 Linux")


def held(image: bytes) -> tuple[Any, list[Any]]:
    """The data of a resource callback, and what keeps it alive."""
    raw = ctypes.create_string_buffer(image, len(image))
    module = cupti.ModuleResourceData(1, len(image), ctypes.addressof(raw))
    data = cupti.ResourceData(0x77, 0, ctypes.addressof(module))
    return data, [raw, module]


def made() -> tuple[Catcher, Any, list[tuple[int, int, int]]]:
    """A catcher, its callback as a C function that releases the interpreter's lock, and what Python got."""
    got: list[tuple[int, int, int]] = []
    thunk = cupti.CallbackType(lambda _user, domain, number, address: got.append((domain, number, address)))
    found = Catcher.make(ctypes.cast(thunk, ctypes.c_void_p).value or 0)
    assert found is not None
    call = cupti.CallbackType(found.address)
    call.kept = thunk
    return found, call, got


@needs_code
def test_images_are_caught_and_other_callbacks_handed_on() -> None:
    found, call, got = made()
    for number in range(5):
        data, _kept = held(bytes([number]) * (number * 1000 + 1))
        call(None, cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, ctypes.addressof(data))
    assert got == []
    mine = threading.get_ident()
    assert found.take() == [Caught(mine, bytes([n]) * (n * 1000 + 1)) for n in range(5)]
    assert found.take() == []
    data, _kept = held(b"again")
    call(None, cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, ctypes.addressof(data))
    call(None, cupti.DOMAIN_DRIVER, 6, 0x1230)
    call(7, cupti.DOMAIN_RESOURCE, 5, 0x1240)
    assert got == [(cupti.DOMAIN_DRIVER, 6, 0x1230), (cupti.DOMAIN_RESOURCE, 5, 0x1240)]
    assert found.take() == [Caught(mine, b"again")] and found.take() == []


@needs_code
def test_empty_images_and_missing_descriptions_are_passed_over() -> None:
    found, call, got = made()
    for descriptor in (None, cupti.ModuleResourceData(1, 0, 0x1000), cupti.ModuleResourceData(1, 8, None)):
        place = None if descriptor is None else ctypes.addressof(descriptor)
        data = cupti.ResourceData(0x77, 0, place)
        call(None, cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, ctypes.addressof(data))
    assert got == [] and found.take() == []


@needs_code
def test_threads_push_while_another_takes() -> None:
    found, call, _ = made()
    threads, each = 6, 400
    seen: list[Caught] = []
    names: dict[int, int] = {}

    together = threading.Barrier(threads)

    def push(number: int) -> None:
        together.wait()  # all alive at once: ids of ended threads are used again
        names[threading.get_ident()] = number
        for turn in range(each):
            data, _kept = held(b"%d-%d" % (number, turn))
            call(None, cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, ctypes.addressof(data))
        together.wait()

    workers = [threading.Thread(target=push, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        seen += found.take()
    seen += found.take()
    assert len(seen) == threads * each
    for number in range(threads):
        mine = [item.image for item in seen if item.image.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, turn) for turn in range(each)]
    assert all(item.image.startswith(b"%d-" % names[item.thread]) for item in seen)


KEEPS_THE_LOCK = """
import ctypes, mmap, struct, sys
sys.setswitchinterval(1000)  # between two lines this thread would hand the lock over, where the machine is busy
sys.path.insert(0, sys.argv[1])
from test_catcher import held, made
from gwatch.cuda import cupti
from gwatch.cuda.catcher import _assembled
found, call, _ = made()
if sys.argv[2] == "python":
    call = cupti.CallbackType(lambda *_: None)
data, kept = held(b"image")
word = struct.Struct("<Q").pack
# The start routine of a C thread: mov rcx, data; mov esi, 3; mov edx, 6; mov rax, callback; call it on 16 bytes; ret.
place, target = ctypes.addressof(data), ctypes.cast(call, ctypes.c_void_p).value
code = _assembled([b"\\x48\\xb9" + word(place), "BE03000000", "BA06000000",
                   b"\\x48\\xb8" + word(target), "4883EC08", "FFD0", "4883C408", "C3"])
memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(code)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
library = ctypes.PyDLL(None)  # calls through it keep the interpreter's lock
thread = ctypes.c_uint64()
library.pthread_join.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
library.pthread_create.argtypes = [ctypes.c_void_p] * 4
assert library.pthread_create(ctypes.addressof(thread), None, start, None) == 0
assert library.pthread_join(thread.value, None) == 0
assert [item.image for item in found.take()] == [b"image"]
"""


@needs_code
def test_the_callback_ends_while_another_thread_keeps_the_interpreters_lock() -> None:
    command = [sys.executable, "-c", KEEPS_THE_LOCK, str(Path(__file__).parent)]
    subprocess.run([*command, "code"], check=True, timeout=60)
    with pytest.raises(subprocess.TimeoutExpired):  # the same in Python never ends
        subprocess.run([*command, "python"], check=True, timeout=4)


def test_other_machines_keep_the_callback_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catcher.platform, "machine", lambda: "aarch64")
    assert Catcher.make(0x1000) is None


def test_hooks_give_caught_images_to_the_load_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCupti()
    monkeypatch.setattr(cupti, "load", lambda: fake)
    hooks = Hooks()
    hooks.acquire()
    mine = threading.get_ident()
    handle = ctypes.c_uint64(0x500)
    fake.images = [Caught(mine, b"before")]
    arguments = load_arguments(handle, 0)
    fake.call("cuModuleLoad", arguments, inside=lambda: fake.images.append(Caught(mine, b"\x7fELF file")))
    assert hooks.images.by_handle(0x500) == b"\x7fELF file"
    fake.images = [Caught(1, b"\x7fELF.text.late\0")]
    assert hooks.images.with_kernel("late") == [b"\x7fELF.text.late\0"], "looked for when it is asked for"
    hooks.release()
