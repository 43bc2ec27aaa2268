"""The machine made of Python that do_trace's own tests use serves here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "run"))

import pytest
from test_trace_flow import machine  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def driver_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run as if there were a driver; none of them uses it."""
    monkeypatch.setattr("gwatch.cuda.program.collected.need_driver", lambda: None)
