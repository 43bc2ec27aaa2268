"""Switching interception on and off by its public names."""

from __future__ import annotations

import pytest
from fakecupti import FakeCupti

import gwatch.cuda
import gwatch.libpygwatch as pygwatch
from gwatch.cuda import capture, cupti
from gwatch.errors import ToolError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    library = FakeCupti()
    monkeypatch.setattr(cupti, "load", lambda: library)
    monkeypatch.setattr(capture, "_DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(pygwatch, "hooks", capture.Hooks())
    return library


def test_importing_installs_nothing() -> None:
    assert not pygwatch.hooks_installed()


def test_init_and_shutdown_are_idempotent(fake: FakeCupti) -> None:
    pygwatch.init_cupti_hooks()
    pygwatch.init_cupti_hooks()
    assert fake.subscribed and pygwatch.hooks_installed()
    pygwatch.shutdown_capsule()
    assert not fake.subscribed and not pygwatch.hooks_installed()
    pygwatch.shutdown_capsule()


def test_start_stop_and_session(fake: FakeCupti) -> None:
    assert gwatch.cuda.start() and gwatch.cuda.start()
    assert gwatch.cuda.stop() and not gwatch.cuda.stop()
    with pytest.raises(ZeroDivisionError), gwatch.cuda.session():
        assert fake.subscribed
        raise ZeroDivisionError
    assert not fake.subscribed


def test_a_refused_subscription_can_be_tried_again(fake: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(callback: object, name: str = "gwatch") -> None:
        raise ToolError("cupti-held", "CUPTI's one subscription is held by CUPTI for nsys")

    with monkeypatch.context() as patch:
        patch.setattr(fake, "subscribe", refuse)
        with pytest.raises(ToolError, match=r"\[cupti-held\]"):
            pygwatch.init_cupti_hooks()
    assert not pygwatch.hooks_installed()
    pygwatch.init_cupti_hooks()
    assert fake.subscribed
    pygwatch.shutdown_capsule()
