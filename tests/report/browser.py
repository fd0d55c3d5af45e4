"""A real browser looks at a page: headless Chromium, offline, with axe-core inside, told what to do by its DevTools.

    python -m tests.report.browser report.html --width 390 --dark --output picture.png
    python -m tests.report.browser report.html --output page.pdf

Widths are those of the layout: a phone is emulated, since no window of Chromium is narrower than 500 px.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

# Nothing of it calls home; a page of ours would have nothing to call.
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-port=0", "about:blank",
)  # fmt: skip
_HANG: Final = 300.0
"""Seconds after which a browser does not answer any more: this ends a hang, and decides nothing."""
_PROBE: Final = """
axe.run(document, {resultTypes: ['violations']}).then(found => {
  const shown = e => !e.closest('.scroll,svg') && !e.closest('details:not([open]) > :not(summary)');
  const wide = [...document.querySelectorAll('body *')].filter(e => shown(e) &&
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName + '.' + e.className);
  return {
    violations: found.violations.map(v => (
      {id: v.id, impact: v.impact, nodes: v.nodes.map(n => n.html.slice(0, 200))})),
    passes: found.passes.length,
    figures: document.querySelectorAll('figure svg[role=img], figure .bars').length,
    pictures: [...document.images].filter(i => i.naturalWidth > 20).length,
    empty: [...document.querySelectorAll('figure svg[role=img]')].filter(
      s => shown(s) && s.getBoundingClientRect().height < 20).length,
    wide: wide, width: document.documentElement.clientWidth, text: document.body.innerText.length,
    background: getComputedStyle(document.body).backgroundColor};
})
"""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Look:
    """What the browser made of a page."""

    found: dict[str, Any]
    console: tuple[str, ...]

    @property
    def serious(self) -> list[dict[str, Any]]:
        return [one for one in self.found["violations"] if one["impact"] in ("serious", "critical")]


@dataclass
class Browser:
    """One Chromium; `look` and `picture` open a page anew each."""

    _socket: Any
    _loop: asyncio.AbstractEventLoop
    _number: int = 0
    _heard: list[dict[str, Any]] = field(default_factory=list)

    def look(self, page: Path, *, width: int, dark: bool) -> Look:
        """Open the page at that width, in light or dark, and let axe-core read it."""
        session = self._open(page, width, 900, dark=dark)
        self._evaluate(session, axe())
        found = self._evaluate(session, _PROBE)
        console = tuple(_said(one["params"]) for one in self._heard if one["method"] in _SPOKEN)
        return Look(found, console)

    def picture(self, page: Path, *, width: int, dark: bool, height: int | None = None, scale: float = 1.0) -> bytes:
        """The page as PNG, whole or its first `height` pixels."""
        session = self._open(page, width, 900, dark=dark)
        whole = self._tell("Page.getLayoutMetrics", session=session)["cssContentSize"]["height"]
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": scale}
        taken = self._tell("Page.captureScreenshot", session=session, clip=clip, captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    def pdf(self, page: Path) -> bytes:
        session = self._open(page, 800, 900, dark=False)
        return base64.b64decode(self._tell("Page.printToPDF", session=session, printBackground=True)["data"])

    def _open(self, page: Path, width: int, height: int, *, dark: bool) -> str:
        target = self._tell("Target.createTarget", url="about:blank")["targetId"]
        session = str(self._tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            self._tell(f"{domain}.enable", session=session)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._tell("Emulation.setDeviceMetricsOverride", session=session, **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", session=session, features=[scheme])
        self._heard.clear()
        self._tell("Page.navigate", session=session, url=page.resolve().as_uri())
        while not any(one["method"] == "Page.loadEventFired" for one in self._heard):
            self._heard.append(self._receive())
        return session

    def _evaluate(self, session: str, script: str) -> Any:
        done = self._tell("Runtime.evaluate", session=session, expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def _tell(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        self._number += 1
        words = {"id": self._number, "method": method, "params": params}
        self._wait(self._socket.send_str(json.dumps(words | ({"sessionId": session} if session else {}))))
        while (heard := self._receive()).get("id") != self._number:
            self._heard.append(heard)
        assert "error" not in heard, (method, heard)
        result: dict[str, Any] = heard["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._wait(self._socket.receive_str(timeout=_HANG)))
        return heard

    def _wait(self, what: Awaitable[_T]) -> _T:
        return self._loop.run_until_complete(what)


_SPOKEN: Final = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def _said(params: dict[str, Any]) -> str:
    return json.dumps(params.get("exceptionDetails") or params.get("entry") or params.get("args"))


def chromium() -> str:
    """Debian's, or whatever it is called elsewhere."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no browser: install Debian's package chromium to look at pages")


def axe() -> str:
    """axe-core's script, from the Python package that carries it: found, not imported, which would need a driver."""
    spec = find_spec("axe_core_python")
    if spec is None or spec.origin is None:
        pytest.skip("no axe-core: install the extra [dev]")
    return (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser for as long as this lasts."""
    aiohttp = pytest.importorskip("aiohttp", reason="no client for DevTools: install the extra [dev]")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [chromium(), f"--user-data-dir={folder}", *_FLAGS]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        loop = asyncio.new_event_loop()
        try:
            port, path = _door(Path(folder) / "DevToolsActivePort", process)
            client = loop.run_until_complete(_made(aiohttp))
            address = f"http://127.0.0.1:{port}{path}"
            socket = loop.run_until_complete(client.ws_connect(address, max_msg_size=0))
            yield Browser(socket, loop)
            loop.run_until_complete(client.close())
        finally:
            process.kill()
            process.wait()
            loop.close()


async def _made(aiohttp: Any) -> Any:
    return aiohttp.ClientSession()


def _door(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Where the browser listens: it writes that when it is up."""
    ends = time.monotonic() + _HANG
    while time.monotonic() < ends and process.poll() is None:
        if file.exists() and len(lines := file.read_text().split("\n")) >= 2:
            return lines[0], lines[1]
        time.sleep(0.05)
    raise AssertionError(f"the browser did not come up (exit code {process.poll()})")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="a .png, or a .pdf")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, help="by default the whole page")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--dark", action="store_true")
    chosen = parser.parse_args()
    with browser() as one:
        look = {"width": chosen.width, "dark": chosen.dark, "height": chosen.height, "scale": chosen.scale}
        is_paper = chosen.output.suffix == ".pdf"
        chosen.output.write_bytes(one.pdf(chosen.page) if is_paper else one.picture(chosen.page, **look))
    sys.stdout.write(f"{chosen.output}\n")


if __name__ == "__main__":
    _main()
