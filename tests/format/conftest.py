"""One browser per test module."""

from __future__ import annotations

import pytest
from format_browser import Browser, find_chromium


@pytest.fixture(scope="module")
def browser():
    assert find_chromium(), "CI needs a Chromium: apt-get install chromium"
    with Browser() as browser:
        yield browser
