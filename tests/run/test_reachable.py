"""Finding a framework's objects without disturbing the threads that make them."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType

import pytest

from gwatch.cuda.reachable import reachable


class Wanted:
    """What is searched for."""

    def __init__(self, name: str) -> None:
        self.name = name


class Holder:
    """An object that keeps another one, as launchers keep compiled kernels."""

    def __init__(self, kept: object) -> None:
        self.kept = {"deep": [(kept,)]}

    def run(self) -> object:
        return self.kept


def names() -> set[str]:
    return {item.name for item in reachable({"Wanted"})}


def test_locals_closures_methods_and_module_globals_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_module_of_the_test")
    module.kept = Holder(Wanted("global"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    captured = Wanted("closure")

    def outer() -> set[str]:
        here = Wanted("local")  # noqa: F841
        method = Holder(Wanted("method")).run  # noqa: F841
        calls = [lambda: captured]  # noqa: F841
        return names()

    assert outer() == {"global", "closure", "local", "method"}


def test_a_module_that_is_not_registered_and_a_functions_globals_are_followed() -> None:
    module = ModuleType("never_in_sys_modules")
    module.kept = [Wanted("module in a local")]  # type: ignore[attr-defined]
    assert names() == {"module in a local"}
    other = ModuleType("never_in_sys_modules_either")
    other.kept = Wanted("global of a function")  # type: ignore[attr-defined]
    exec("def call(): pass", other.__dict__)
    call = other.call
    del module, other
    assert names() == {"global of a function"}
    assert call() is None


def test_objects_that_pretend_to_be_of_another_class_are_not_asked() -> None:
    class Lazy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise AssertionError("foreign code ran")

        def __getattr__(self, name: str) -> object:
            raise AssertionError("foreign code ran")

    lazy, kept = Lazy(), Holder(Wanted("beside it"))  # noqa: F841
    assert names() == {"beside it"}


def test_what_no_module_or_frame_reaches_is_not_found() -> None:
    assert names() == set()


def test_a_thread_that_builds_tuples_is_not_disturbed() -> None:
    stop, failures = threading.Event(), []

    def build() -> None:
        try:
            while not stop.is_set():
                tuple(i for i in range(20_000))
        except SystemError as error:
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        names()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
