"""Pages for the tests that drive them, and what is drawn on them."""

from __future__ import annotations

import os

import pytest
from format_browser import find_chromium
from format_synth import REGIONS, ROLES

from gwatch.common.format import File, Section_IntraKernelTrace


def page(tmp_path, *results, regions=REGIONS, roles=ROLES, title="SASS trace"):
    file, section = File(title, generated_at="2026-01-02 03:04:05"), Section_IntraKernelTrace()
    for result in results:
        section.add_run(result, regions, roles)
    file.add_section(section)
    path = tmp_path / "trace.html"
    file.render(path)
    return path


needs_browser = pytest.mark.skipif(find_chromium() is None and not os.environ.get("CI"),
                                   reason="no Chromium on this machine (apt-get install chromium)")


def counted(browser):
    """Canvas pixels per scope colour of the timeline."""
    return browser.ask("""(() => {
      const canvas = document.querySelector(".run:not([hidden]) .time"), copy = document.createElement("canvas");
      const style = getComputedStyle(document.documentElement), out = {};
      copy.width = canvas.width;
      copy.height = canvas.height;
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(canvas, 0, 0);
      const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
      for (let i = 0; i < 4; i++) {
        const hex = style.getPropertyValue("--ink" + i).trim();
        const want = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
        let n = 0;
        for (let p = 0; p < data.length; p += 4) {
          if (data[p] === want[0] && data[p + 1] === want[1] && data[p + 2] === want[2]) n++;
        }
        out[i] = n;
      }
      return out;
    })()""")
