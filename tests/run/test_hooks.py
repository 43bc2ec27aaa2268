"""The hooks against a CUPTI made of Python: who is called, when, and what is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakecupti import IDS, FakeCupti, launch_arguments, load_arguments

from gwatch.cuda import capture, cupti
from gwatch.cuda.images import ImageStore
from gwatch.cuda.launchview import LAYOUTS, LaunchView, Replacement
from gwatch.errors import ToolError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/cuda/trace/matmul_sm90.cubin"


class Watcher:
    def __init__(self, to: Replacement | None = None, fail: bool = False) -> None:
        self.asked: list[str] = []
        self.seen: list[str] = []
        self.left: list[int] = []
        self.to, self.fail = to, fail

    def wants(self, symbol: str) -> bool:
        self.asked.append(symbol)
        return symbol.startswith("wanted")

    def enter(self, view: LaunchView) -> None:
        self.seen.append(view.symbol)
        if self.fail:
            raise RuntimeError("from the callback")
        if self.to is not None:
            view.redirect(self.to)

    def leave(self, view: LaunchView, status: int) -> None:
        self.left.append(status)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    library = FakeCupti()
    monkeypatch.setattr(cupti, "load", lambda: library)
    monkeypatch.setattr(capture, "_DRAIN_SECONDS", 0.0)
    return library


@pytest.fixture
def hooks(fake: FakeCupti) -> capture.Hooks:
    return capture.Hooks()


def test_installed_hooks_watch_loads_and_no_launch(hooks: capture.Hooks, fake: FakeCupti) -> None:
    hooks.acquire()
    assert fake.subscribed and fake.launch_callbacks() == 0
    assert (cupti.DOMAIN_DRIVER, IDS["cuModuleLoadData"]) in fake.on
    assert (cupti.DOMAIN_DRIVER, IDS["cuMemAlloc_v2"]) not in fake.on
    hooks.release()
    assert not fake.subscribed and not fake.on and not hooks.installed


def test_launch_callbacks_are_on_only_while_observing(hooks: capture.Hooks, fake: FakeCupti) -> None:
    with hooks.observe(Watcher()):
        assert fake.launch_callbacks() == len(LAYOUTS)
    assert not fake.subscribed and not fake.on
    hooks.acquire()
    with hooks.observe(Watcher()):
        pass
    assert fake.subscribed and fake.launch_callbacks() == 0


def test_a_name_is_asked_about_once_and_others_cost_a_look_up(hooks: capture.Hooks, fake: FakeCupti) -> None:
    watcher = Watcher()
    with hooks.observe(watcher):
        for _ in range(3):
            fake.call("cuLaunchKernel", launch_arguments(), b"other")
            fake.call("cuLaunchKernel", launch_arguments(), b"wanted_1", status=5)
    assert watcher.asked == ["other", "wanted_1"]
    assert watcher.seen == ["wanted_1"] * 3 and watcher.left == [5] * 3


def test_a_redirected_launch_runs_the_other_handle_and_is_put_back(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    arguments, during = launch_arguments(0x1234), []
    with hooks.observe(Watcher(Replacement(0xAA, 0xBB))):
        fake.call(
            "cuLaunchKernel",
            arguments,
            b"wanted",
            inside=lambda: during.append(struct.unpack_from("<Q", arguments)[0]),
        )
    assert during == [0xAA] and struct.unpack_from("<Q", arguments)[0] == 0x1234


def test_an_exception_in_a_callback_is_raised_by_the_observer_only(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    arguments = launch_arguments(0x1234)
    with pytest.raises(RuntimeError, match="from the callback"), hooks.observe(Watcher(fail=True)):
        fake.call("cuLaunchKernel", arguments, b"wanted")
    assert struct.unpack_from("<Q", arguments)[0] == 0x1234
    assert not fake.subscribed
    with hooks.observe(Watcher()):
        pass  # the error does not come back


def test_an_exception_in_the_block_wins_and_leaves_nothing_on(hooks: capture.Hooks, fake: FakeCupti) -> None:
    with pytest.raises(KeyError), hooks.observe(Watcher(fail=True)):
        fake.call("cuLaunchKernel", launch_arguments(), b"wanted")
        raise KeyError("fn")
    assert not fake.subscribed and not fake.on


def test_two_observations_at_once_are_refused(hooks: capture.Hooks, fake: FakeCupti) -> None:
    with hooks.observe(Watcher()):
        with pytest.raises(ToolError, match=r"\[trace-active\]"), hooks.observe(Watcher()):
            pass
        assert fake.launch_callbacks() == len(LAYOUTS)


def test_launches_made_by_the_observer_itself_are_not_shown_to_it(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    class Nested(Watcher):
        def enter(self, view: LaunchView) -> None:
            super().enter(view)
            fake.call("cuLaunchKernel", launch_arguments(), b"wanted_inner")

    watcher = Nested()
    with hooks.observe(watcher):
        fake.call("cuLaunchKernel", launch_arguments(), b"wanted_outer")
    assert watcher.seen == ["wanted_outer"]


def test_a_launch_that_the_observer_makes_under_the_same_id_does_not_end_the_one_it_sees(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    """The driver numbers both alike, and what the observer changed must last until the outer call ends."""
    left: list[str] = []

    class Nested(Watcher):
        def enter(self, view: LaunchView) -> None:
            super().enter(view)
            fake._correlation -= 1
            fake.call("cuLaunchKernel", launch_arguments(), b"wanted_inner")

        def leave(self, view: LaunchView, status: int) -> None:
            left.append(view.symbol)

    with hooks.observe(Nested()):
        ran = list[list[str]]()
        fake.call("cuLaunchKernel", launch_arguments(), b"wanted_outer", inside=lambda: ran.append([*left]))
    assert ran == [[]] and left == ["wanted_outer"]


@pytest.mark.parametrize("api", ["cuModuleLoadData", "cuLibraryLoadData"])
def test_a_loaded_image_is_known_by_its_handle(hooks: capture.Hooks, fake: FakeCupti, api: str) -> None:
    image = EXAMPLE.read_bytes()
    held = ctypes.create_string_buffer(image + b"what follows in memory", len(image) + 22)
    place = ctypes.c_uint64(0)
    hooks.acquire()
    fake.call(
        api, load_arguments(place, ctypes.addressof(held)), inside=lambda: setattr(place, "value", 0x500)
    )
    assert hooks.images.by_handle(0x500) == image
    unload = ctypes.create_string_buffer(struct.pack("<Q", 0x500), 8)
    fake.call("cuModuleUnload", unload)
    assert hooks.images.by_handle(0x500) is None


def test_an_image_that_is_no_elf_is_taken_from_what_the_driver_loaded(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    ptx = ctypes.create_string_buffer(b".version 8.0\n.target sm_90\n")
    place = ctypes.c_uint64(0)
    image = EXAMPLE.read_bytes()

    def inside() -> None:
        fake.module_loaded(image)
        place.value = 0x600

    hooks.acquire()
    fake.call("cuModuleLoadData", load_arguments(place, ctypes.addressof(ptx)), inside=inside)
    assert hooks.images.by_handle(0x600) == image
    assert hooks.images.with_kernel("matmul") == []  # it belongs to that module, nobody else's launch
    hooks.images.seen(image + b"\0")
    assert hooks.images.with_kernel("matmul") == [image + b"\0"] and hooks.images.with_kernel("matmu") == []


def test_a_failed_load_leaves_no_handle(hooks: capture.Hooks, fake: FakeCupti) -> None:
    image = EXAMPLE.read_bytes()
    held = ctypes.create_string_buffer(image, len(image))
    place = ctypes.c_uint64(0x700)
    hooks.acquire()
    fake.call("cuModuleLoadData", load_arguments(place, ctypes.addressof(held)), status=200)
    assert hooks.images.by_handle(0x700) is None


def test_a_registered_image_is_swapped_at_load_and_only_until_told_to_stop(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    image = EXAMPLE.read_bytes()
    patched = image + b"patched"
    held = ctypes.create_string_buffer(image, len(image))
    place, loaded = ctypes.c_uint64(0), []
    arguments = load_arguments(place, ctypes.addressof(held))

    def inside() -> None:
        loaded.append(ctypes.string_at(struct.unpack_from("<Q", arguments, 8)[0], len(patched)))
        place.value = 0x800

    hooks.acquire()
    hooks.images.swap(image, patched)
    fake.call("cuModuleLoadData", arguments, inside=inside)
    assert loaded == [patched]
    assert struct.unpack_from("<Q", arguments, 8)[0] == ctypes.addressof(held)
    assert list(hooks.images.stop_swapping()) == [0x800]
    held_after = ctypes.create_string_buffer(image + bytes(7), len(patched))
    struct.pack_into("<Q", arguments, 8, ctypes.addressof(held_after))
    fake.call("cuModuleLoadData", arguments, inside=inside)
    assert loaded[1] == image + bytes(7)


def test_the_subscription_is_shared_and_given_back_once(hooks: capture.Hooks, fake: FakeCupti) -> None:
    hooks.acquire()
    hooks.acquire()
    hooks.release()
    assert fake.subscribed
    hooks.release_all()
    assert not fake.subscribed
    hooks.release()
    assert not hooks.installed


def test_a_held_subscription_is_an_error_that_leaves_nothing_on(
    hooks: capture.Hooks, fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(callback: Any, name: str = "gwatch") -> None:
        raise ToolError("cupti-held", "CUPTI's one subscription is held by CUPTI for nsys")

    monkeypatch.setattr(fake, "subscribe", refuse)
    with pytest.raises(ToolError, match=r"\[cupti-held\].*nsys"), hooks.observe(Watcher()):
        pass
    assert not hooks.installed and not fake.on
    monkeypatch.undo()


def test_a_forked_child_leaves_its_parents_subscription_alone(
    hooks: capture.Hooks, fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.acquire()
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    hooks.release_all()
    assert fake.subscribed
    monkeypatch.setattr(os, "getpid", lambda: real)
    hooks.release_all()
    assert not fake.subscribed


def test_what_gwatch_loads_itself_is_not_noted(hooks: capture.Hooks, fake: FakeCupti) -> None:
    image = EXAMPLE.read_bytes()
    held = ctypes.create_string_buffer(image, len(image))
    place = ctypes.c_uint64(0x900)
    hooks.acquire()
    with hooks.quiet():
        fake.call("cuLibraryLoadData", load_arguments(place, ctypes.addressof(held)))
        fake.module_loaded(image)
    assert hooks.images.by_handle(0x900) is None and hooks.images.with_kernel("matmul") == []
    fake.call("cuLibraryLoadData", load_arguments(place, ctypes.addressof(held)))
    assert hooks.images.by_handle(0x900) == image


def test_a_module_that_an_observers_question_makes_the_driver_load_is_noted(
    hooks: capture.Hooks, fake: FakeCupti
) -> None:
    image = EXAMPLE.read_bytes()

    class Asking(Watcher):
        def enter(self, view: LaunchView) -> None:
            fake.module_loaded(image)  # what a first cuKernelGetAttribute does under lazy loading

    with hooks.observe(Asking()):
        fake.call("cuLaunchKernel", launch_arguments(), b"wanted")
    assert hooks.images.with_kernel("matmul") == [image]


def test_an_image_loaded_over_and_over_is_kept_once() -> None:
    store = ImageStore()
    for number in range(50):
        store.seen(bytes([1, 2, number % 2]))
    assert list(store._seen) == [bytes([1, 2, 0]), bytes([1, 2, 1])]


class Interrupted(Watcher):
    """What a signal's handler raises, comes while the observer is at work."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.errors = list(errors)

    def enter(self, view: LaunchView) -> None:
        super().enter(view)
        view.redirect(Replacement(0x5678, 0x5679))
        if self.errors:
            raise self.errors.pop(0)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(7)])
def test_what_ends_the_program_reaches_it(hooks: capture.Hooks, fake: FakeCupti, error: BaseException) -> None:
    """Ctrl-C inside a callback was swallowed, and the records of the program were lost with it."""
    watcher = Interrupted(error, type(error)(*error.args))  # the second while the first is on its way
    arguments = launch_arguments()
    before = signal.getsignal(signal.SIGURG)
    with hooks.observe(watcher):
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    if watcher.errors:
                        fake.call("cuLaunchKernel", arguments, b"wanted")
                    time.sleep(0.01)
            assert caught.value.args == error.args
    assert not watcher.errors and not hooks.errors
    assert signal.getsignal(signal.SIGURG) == before


def test_what_a_signals_handler_raises_reaches_the_program(hooks: capture.Hooks, fake: FakeCupti) -> None:
    """A time limit made of SIGALRM and an exception, for instance."""

    def limit(_number: int, _frame: object) -> None:
        raise TimeoutError("the program's own")

    class Slow(Watcher):
        def enter(self, view: LaunchView) -> None:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, limit)
    try:
        with hooks.observe(Slow()), pytest.raises(TimeoutError, match="the program's own"):
            fake.call("cuLaunchKernel", launch_arguments(), b"wanted")
            time.sleep(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not hooks.errors


def test_a_signal_that_comes_before_the_callbacks_first_line_reaches_the_program(
    hooks: capture.Hooks, fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    before = sys.unraisablehook
    with hooks.observe(Watcher()):
        for place in ({"object": fake.callback, "err_msg": None}, {"object": None, "err_msg": f"in {fake.callback!r}"}):
            with pytest.raises(KeyboardInterrupt):
                sys.unraisablehook(SimpleNamespace(exc_value=KeyboardInterrupt(), **place))
                time.sleep(20)
        assert not others
        sys.unraisablehook(SimpleNamespace(exc_value=KeyboardInterrupt(), object=len, err_msg=None))
    assert len(others) == 1 and sys.unraisablehook == before


def test_a_launch_whose_observer_failed_is_put_back(hooks: capture.Hooks, fake: FakeCupti) -> None:
    watcher, arguments = Interrupted(RuntimeError("odd")), launch_arguments()
    with pytest.raises(RuntimeError, match="odd"), hooks.observe(watcher):
        fake.call("cuLaunchKernel", arguments, b"wanted")
    assert struct.unpack_from("<Q", arguments)[0] == 0x1234 and watcher.left == [0]


def test_errors_in_callbacks_do_not_pile_up(hooks: capture.Hooks, fake: FakeCupti) -> None:
    with pytest.raises(RuntimeError, match="from the callback"), hooks.observe(Watcher(fail=True)):
        for _ in range(100):
            fake.call("cuLaunchKernel", launch_arguments(), b"wanted")
        assert len(hooks.errors) == 1


def test_a_launch_without_a_name_is_shown_too(hooks: capture.Hooks, fake: FakeCupti) -> None:
    watcher = Watcher()
    with hooks.observe(watcher):
        fake.call("cuLaunchKernel", launch_arguments())
    assert watcher.seen == [""] and watcher.asked == []


def test_a_handle_that_comes_again_has_forgotten_its_old_image() -> None:
    """A context takes its modules along without an unload call."""
    store = ImageStore()
    store.loaded(5, b"old")
    store.contained(5, b"old container")
    store.loaded(5, None)
    assert store.by_handle(5) is None and store.container(5) is None and store.loads(5) == 2
