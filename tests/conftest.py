"""Fixtures shared by all tests: the open corpus, fetched on demand and pinned by hash."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from fetch_corpus import fetch  # noqa: E402


def _corpus(targets: list[str] | None) -> list[Path]:
    files, problems = fetch(ROOT / ".corpus", targets, log=False)
    if problems:
        pytest.fail("the open corpus could not be fetched: " + "; ".join(problems))
    return files


@pytest.fixture(scope="session")
def corpus_sm90() -> list[Path]:
    """Every sm_90 and sm_90a cubin of the open corpus."""
    return _corpus(["sm_90", "sm_90a"])


@pytest.fixture(scope="session")
def corpus_all() -> list[Path]:
    """Every cubin of the open corpus, all architectures, both ELF ABIs."""
    return _corpus(None)
