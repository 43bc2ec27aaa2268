#!/usr/bin/env python3
"""Take a picture of a report's page with Chromium.

    python tools/page_picture.py REPORT PICTURE.png [WIDTH HEIGHT [SCROLL]]

REPORT is a page, or any other form of a report, of which a page is made first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/format")]

from format_browser import Browser  # noqa: E402

from gwatch.common.format import File  # noqa: E402


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    report, picture = Path(sys.argv[1]), Path(sys.argv[2])
    numbers = [int(text) for text in sys.argv[3:]]
    width, height, scroll = [*numbers, *(1280, 900, 0)[len(numbers) :]]
    with tempfile.TemporaryDirectory() as folder, Browser(width, height) as browser:
        page = report
        if report.suffix != ".html":
            page = Path(folder) / "page.html"
            File.load(report).render(page)
        browser.open(page)
        browser.ask(f"window.scrollTo(0, {scroll})")
        browser.frame()
        browser.picture(picture)
        if browser.problems:
            print("\n".join(browser.problems), file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
