"""The scripts are no package: their folders are put on the path, as running them does."""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(_FOLDER), str(_FOLDER / "peers")]
