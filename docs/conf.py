"""The documentation site: `make docs`. Reference pages are written from the code when the site is built."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools"))

from bilateral.version import __version__  # noqa: E402
from write_reference import write_reference  # noqa: E402

project = "bilateral"
author = "the bilateral team"
release = version = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "audits/*/README.md"]
html_theme = "furo"
html_title = "bilateral"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Pages are read on code hosts too, where links to source files work; here they are plain words.
suppress_warnings = ["myst.xref_missing", "myst.header"]

write_reference(HERE / "reference")
