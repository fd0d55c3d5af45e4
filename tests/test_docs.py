"""The documentation is built without a warning, and its reference pages are the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bilateral
from bilateral import errors
from bilateral.cli.main import app

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built with warnings as errors."""
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def _text(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_every_command_and_every_public_name_is_in_the_reference(site: Path) -> None:
    commands = _text(site / "reference" / "commands.html")
    for command in app.registered_commands:
        assert f"bilateral {command.name}" in commands
    api = _text(site / "reference" / "api.html")
    for name in bilateral.__all__:
        assert name in api


def test_every_setting_and_every_error_is_in_the_reference(site: Path) -> None:
    settings = _text(site / "reference" / "settings.html")
    for name, field in bilateral.RunPlan.model_fields.items():
        assert name in settings
        for inner in getattr(field.annotation, "model_fields", {}):
            assert f"{name}.{inner}" in settings
    catalogue = _text(site / "reference" / "errors.html")
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.BilateralError):
            assert name in catalogue
            assert found.__doc__


def test_no_page_stands_alone(site: Path) -> None:
    """Every page of docs/ is built, and reached from another one (Sphinx warns of those that are not)."""
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    built = [page for page in pages if page.parts[0] not in ("audits", "_build")]
    assert len(built) > 40
    for page in built:
        assert (site / page).exists(), page


@pytest.mark.usefixtures("site")  # which writes the reference
def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if page.parent.name == "reference" or "_build" in page.parts:
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
