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
