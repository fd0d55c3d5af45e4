"""Pages as people see them: in a browser, on a phone and on a desk, by day and by night, and read aloud."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.browser import Look, look_at
from tests.report.run_pages import page_of

DESK, PHONE = 1200, 500
"""Headless Chromium makes no window narrower than 500; the page's narrow form begins below that plus one."""


@pytest.fixture(scope="module", params=["sealed", "perturbation", "noise"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("width", "dark"), [(DESK, False), (PHONE, True)])
def test_a_page_is_shown_whole_and_can_be_read_by_everybody(name: str, width: int, dark: bool, tmp_path: Path) -> None:
    seen: Look = look_at(page_of(name), tmp_path, width=width, dark=dark)
    assert seen.console == ()
    assert seen.serious == []
    assert seen.found["figures"] >= 3
    assert seen.found["empty"] == 0
    assert seen.found["wide"] == []
    assert seen.found["text"] > 2000
    red, *_ = (int(part) for part in seen.found["background"].removeprefix("rgb(").rstrip(")").split(","))
    assert (red < 128) == dark


def test_the_browser_does_find_what_is_wrong(tmp_path: Path) -> None:
    """The control: a page with a picture without words, pale text, a script that fails and a line too wide."""
    page = tmp_path / "bad" / "report.html"
    page.parent.mkdir()
    page.write_text(
        "<html><body style='background:#fff'><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"
        "<p style='color:#ddd'>pale</p><div style='width:3000px'>wide</div><script>missing()</script></body></html>"
    )
    seen = look_at(page, tmp_path, width=DESK, dark=False)
    assert {"image-alt", "color-contrast"} <= {one["id"] for one in seen.serious}
    assert any("missing" in line for line in seen.console)
    assert seen.found["wide"] != []
