"""Fixtures of the machine-code tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from gwatch.sass.nvdisasm import disassemble_cubin


@pytest.fixture(scope="session")
def sm90_listings(corpus_sm90: list[Path]) -> dict[Path, str]:
    """nvdisasm's code listing of each sm_90 and sm_90a cubin of the open corpus."""
    return {path: disassemble_cubin(path, "-c") for path in corpus_sm90}
