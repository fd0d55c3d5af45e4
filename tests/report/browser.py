"""A real browser looks at a page: headless Chromium, offline, with axe-core inside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Nothing of it calls home; a page of ours would have nothing to call.
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=60000",
)  # fmt: skip
_PROBE = """
axe.run(document, {resultTypes: ['violations']}).then(found => {
  const told = document.createElement('pre'); told.id = 'told';
  const wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll,svg') &&
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName + '.' + e.className);
  told.textContent = JSON.stringify({
    violations: found.violations.map(v => (
      {id: v.id, impact: v.impact, nodes: v.nodes.map(n => n.html.slice(0, 200))})),
    figures: document.querySelectorAll('figure svg[role=img], figure .bars').length,
    empty: [...document.querySelectorAll('figure svg[role=img]')].filter(
      s => s.getBoundingClientRect().height < 20).length,
    wide: wide, background: getComputedStyle(document.body).backgroundColor, text: document.body.innerText.length,
    passes: found.passes.length});
  document.body.appendChild(told);
});
"""


@dataclass(frozen=True)
class Look:
    """What the browser made of a page."""

    found: dict[str, Any]
    console: tuple[str, ...]

    @property
    def serious(self) -> list[dict[str, Any]]:
        return [one for one in self.found["violations"] if one["impact"] in ("serious", "critical")]


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


def look_at(page: Path, folder: Path, *, width: int, dark: bool) -> Look:
    """Open the page at that width, in light or dark, and let axe-core read it."""
    probed = folder / f"{page.parent.name}-{width}-{dark}.html"
    text = page.read_text(encoding="utf-8")
    script = f"<script>{axe()}</script><script>{_PROBE}</script></body>"
    probed.write_text(text.replace("</body>", script), encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    command = [chromium(), *_FLAGS, *scheme, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    done = subprocess.run([*command, "--dump-dom", probed.as_uri()], capture_output=True, text=True, check=True)
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told is not None, done.stderr[-2000:]
    console = tuple(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return Look(json.loads(unescape(told[1])), console)
