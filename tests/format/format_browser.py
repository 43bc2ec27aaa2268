"""Drives a headless Chromium over its debugging pipe: load a page, act on it, ask it questions, take
pictures.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

TIMEOUT = 60.0


def find_chromium() -> str | None:
    """Path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one page; everything the page logs, throws or requests is kept."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._profile = tempfile.mkdtemp(prefix="gwatch-browser-")
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        command = [find_chromium() or "chromium", "--headless", "--no-sandbox", "--disable-gpu",
                   "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
                   f"--user-data-dir={self._profile}", f"--window-size={width},{height}",
                   "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "browser", *command],
            pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_end)
        os.close(write_end)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=False)
        if dark:
            self.call("Emulation.setEmulatedMedia",
                      features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        result: dict[str, Any] = json.loads(message)
        return result

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; events that arrive meanwhile are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"])[:2000])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path) -> float:
        """Load a page and wait until its first trace is drawn; returns the seconds that took."""
        self.problems.clear()
        begin = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        ready = ("!!document.querySelector('.run[data-ready]') || "
                 "(document.readyState === 'complete' && !document.querySelector('.time'))")
        while not self.ask(ready):
            if time.monotonic() - begin > TIMEOUT:
                raise TimeoutError(f"the page is not ready; problems: {self.problems}")
            time.sleep(0.05)
        self.frame()
        return time.monotonic() - begin

    def ask(self, expression: str) -> Any:
        """Value of a JavaScript expression (a promise is waited for)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def frame(self) -> None:
        """Wait until what was asked to be drawn is drawn."""
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One mouse event: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        button = "left" if kind in ("mousePressed", "mouseReleased") or more.get("buttons") else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y,
                  **{"button": button, "clickCount": 1 if button == "left" else 0, **more})
        self.frame()

    def drag(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Press, move in three steps, release."""
        self.mouse("mouseMoved", x0, y0)
        self.mouse("mousePressed", x0, y0)
        for k in (1, 2, 3):
            self.mouse("mouseMoved", x0 + (x1 - x0) * k / 3, y0 + (y1 - y0) * k / 3, buttons=1)
        self.mouse("mouseReleased", x1, y1)

    def key(self, key: str) -> None:
        """Type one key into the focused element."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.frame()

    def box(self, selector: str) -> dict[str, float]:
        """Left, top, width, height of an element, in page pixels of the window."""
        box: dict[str, float] = self.ask(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return {left: b.left, top: b.top, width: b.width, height: b.height}; })()")
        return box

    def text(self, selector: str) -> str:
        """Text of an element."""
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).textContent"))

    def picture(self, path: Path) -> None:
        """Save a PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
