"""A real browser for the tests: Chromium, driven over a pipe with nothing but the standard library.

The DevTools protocol is JSON messages that end in a zero byte, read by Chromium from file 3 and
written to file 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
NO_CHROMIUM = "needs the package chromium of the distribution: apt-get install chromium"
PATIENCE = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """Chromium answered with an error, or not at all."""


class Browser:
    """Sends commands and keeps what was told meanwhile; one thread, no callbacks."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, method: str, session: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not any(self._is(event, method, session) for event in self.events):
            self.events.append(self._next(deadline, method))

    def told(self, method: str, session: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if self._is(event, method, session)]

    @staticmethod
    def _is(event: dict[str, Any], method: str, session: str) -> bool:
        return event.get("method") == method and event.get("sessionId") == session

    def _next(self, deadline: float, waiting: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise BrowserError(f"no answer within {PATIENCE:.0f} s to {waiting}")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise BrowserError(f"the browser ended before it answered {waiting}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


class Tab:
    """One page, a file or an address, in a window of its own size."""

    def __init__(
        self,
        browser: Browser,
        page: Path | str,
        width: int,
        dark: bool = False,
        scripts: bool = True,
    ) -> None:
        self.browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session: str = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        if not scripts:
            self.send("Emulation.setScriptExecutionDisabled", value=True)
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.send("Page.navigate", url=url)
        browser.wait("Page.loadEventFired", self.session)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element, after it was scrolled into view."""
        quoted = json.dumps(selector)
        self.evaluate(
            f"document.querySelector({quoted})"
            ".scrollIntoView({block: 'center', behavior: 'instant'})"
        )
        box = self.evaluate(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])"
            f"(document.querySelector({quoted}).getBoundingClientRect())"
        )
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, **where)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key on whatever has the focus."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more
            )

    def requests(self) -> list[str]:
        """Addresses that the page asked for; those inside the page itself are left out."""
        told = self.browser.told("Network.requestWillBeSent", self.session)
        urls = [params["request"]["url"] for params in told]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions."""
        logged = self.browser.told("Log.entryAdded", self.session)
        out = [p["entry"]["text"] for p in logged if p["entry"]["level"] in ("error", "warning")]
        calls = self.browser.told("Runtime.consoleAPICalled", self.session)
        out += [str(params["args"]) for params in calls]
        thrown = self.browser.told("Runtime.exceptionThrown", self.session)
        return out + [str(params["exceptionDetails"]) for params in thrown]

    def screenshot(self, path: Path, height: int | None = None, top: int = 0) -> None:
        """The page from ``top``, as long as it is or ``height`` pixels of it."""
        whole = self.evaluate("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": whole[0], "height": height or whole[1], "scale": 1}
        answer = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a fresh profile, ended with the block."""
    assert CHROMIUM is not None, NO_CHROMIUM
    to_child, from_child = os.pipe(), os.pipe()
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_child[0], from_child[1])]
    for fd in (to_child[0], from_child[1]):
        os.close(fd)
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", *command],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in theirs:
            os.close(fd)
        browser = Browser(from_child[0], to_child[1])
        try:
            yield browser
        finally:
            with suppress(BrowserError, BrokenPipeError):
                browser.send("Browser.close")
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(from_child[0])
            os.close(to_child[1])
