"""What kind of thing is learned from data."""

from __future__ import annotations

from typing import Literal

Task = Literal["classification", "regression", "multi-label", "segmentation"]
"""One class a sample; real values; 0 or 1 for each of several labels; one class a place (a pixel)."""
