"""Pages as people see them: in a browser, on a phone and on a desk, by day and by night, and read aloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, Look, browser
from tests.report.run_pages import page_of

DESK, PHONE = 1200, 390
DRAWN = {"sealed": 4, "perturbation": 4, "noise": 4, "hetero": 3, "serving": 1, "audit": 1}
"""Curves, bars, time lines, pictures: at least so many on each page."""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.mark.parametrize("name", DRAWN)
def test_a_page_is_shown_whole_and_can_be_read_by_everybody(name: str, chrome: Browser) -> None:
    for width, dark in ((DESK, False), (DESK, True), (PHONE, False), (PHONE, True)):
        seen: Look = chrome.look(page_of(name), width=width, dark=dark)
        assert seen.found["width"] == width
        assert seen.console == ()
        assert seen.serious == []
        assert seen.found["figures"] + seen.found["pictures"] >= DRAWN[name]
        assert seen.found["empty"] == 0
        assert seen.found["wide"] == []
        assert seen.found["text"] > 2000
        red, *_ = (int(part) for part in seen.found["background"].removeprefix("rgb(").rstrip(")").split(","))
        assert (red < 128) == dark


def test_a_page_is_printed(chrome: Browser) -> None:
    assert chrome.pdf(page_of("sealed")).startswith(b"%PDF")


def test_the_browser_does_find_what_is_wrong(tmp_path: Path, chrome: Browser) -> None:
    """The control: a page with a picture without words, pale text, a script that fails and a line too wide."""
    page = tmp_path / "bad" / "report.html"
    page.parent.mkdir()
    page.write_text(
        "<html><body style='background:#fff'><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"
        "<p style='color:#ddd'>pale</p><div style='width:3000px'>wide</div><script>missing()</script></body></html>"
    )
    seen = chrome.look(page, width=DESK, dark=False)
    assert {"image-alt", "color-contrast"} <= {one["id"] for one in seen.serious}
    assert any("missing" in line for line in seen.console)
    assert seen.found["wide"] != []
