"""Pictures of an audit: reconstructions beside their targets, curves, and one overview of all findings.

    paths = write_pictures(evidence, folder)

File names follow from what an attack is, not from the order of attacks: `pictures_of` finds an attack's pictures again.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from bilateral.audit.evidence import Curve, Evidence, Picture
from bilateral.report.audit_overview import overview_figure
from bilateral.report.audit_words import attacker, subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVERVIEW = "overview.png"
DOTS_PER_INCH = 120
MAX_ROWS = 8
_BETWEEN = "--"
_COLOURS = ("#c2410c", "#1d4ed8", "#0f766e", "#7e22ce", "#525252", "#b45309")


def write_pictures(evidence: Sequence[Evidence], folder: Path) -> list[Path]:
    """All pictures of an audit as PNG files, the overview first. Files of the same names are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Figure] = {}
    for one in evidence:
        for picture in one.pictures:
            figures[_free_name(one, picture.title, figures)] = picture_figure(picture, one)
        for curve in one.curves:
            figures[_free_name(one, curve.title, figures)] = curve_figure(curve, one)
    overview = [write_overview(evidence, folder)] if evidence else []
    return overview + [_write(figure, folder / name) for name, figure in figures.items()]


def write_overview(evidence: Sequence[Evidence], folder: Path) -> Path:
    """The overview alone: of all evidence, where pictures were written experiment by experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    return _write(overview_figure(evidence), folder / OVERVIEW)


def pictures_of(evidence: Evidence, paths: Sequence[Path]) -> list[Path]:
    """Those of one attack, among written ones."""
    return [path for path in paths if path.name.startswith(_stem(evidence) + _BETWEEN)]


def slug(text: str) -> str:
    """A file name that is safe everywhere."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "x"


def picture_figure(picture: Picture, evidence: Evidence) -> Figure:
    """A grid: one row an image, one column a condition. Small images are enlarged pixel by pixel."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and needed only here

    rows = picture.rows[:MAX_ROWS]
    cell = 1.25
    width, height = max(3.6, cell * len(picture.columns)), cell * len(rows) + 1.15
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(max(1, len(rows)), len(picture.columns), squeeze=False)
    for axes_row, images in zip(grid, rows, strict=False):
        for axes, image in zip(axes_row, images, strict=True):
            _show(axes, image)
    for axes, caption in zip(grid[0], picture.columns, strict=True):
        axes.set_title(_wrapped_caption(caption), fontsize=8)
    _title(figure, picture.title, evidence, width)
    return figure


def curve_figure(curve: Curve, evidence: Evidence) -> Figure:
    """Lines with their intervals as bands; the horizontal axis is logarithmic where values span it."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    width = 6.0
    figure = Figure(figsize=(width, 3.9), layout="constrained")
    axes = figure.subplots()
    styles = ("-", "--", "-.", ":")
    for number, (name, points) in enumerate(curve.lines.items()):
        x, y, low, high = np.asarray(points, dtype=float).reshape(-1, 4).T
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(x, y, styles[number % len(styles)], color=colour, marker="o", markersize=4, label=name)
        band = np.isfinite(low) & np.isfinite(high)
        axes.fill_between(x[band], low[band], high[band], color=colour, alpha=0.15, linewidth=0)
    _logarithmic_where_it_helps(axes, curve)
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if curve.lines:
        axes.legend(frameon=False, fontsize=8)
    _title(figure, curve.title, evidence, width)
    return figure


def _show(axes: Axes, image: Tensor) -> None:
    pixels = np.nan_to_num(image.detach().to("cpu").float().clamp(0, 1).numpy())
    channels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels[:, :, None]
    if channels.shape[2] == 3:
        axes.imshow(channels, interpolation="nearest", vmin=0, vmax=1)
    else:
        axes.imshow(channels.mean(axis=2), cmap="gray", interpolation="nearest", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])


def _wrapped_caption(caption: str) -> str:
    """As wide as its column."""
    return "\n".join(line for part in caption.splitlines() for line in textwrap.wrap(part, 19))


def _title(figure: Figure, title: str, evidence: Evidence, width: float) -> None:
    columns = int(width * 13)
    whose = f"{evidence.attack}, {attacker(evidence)}"
    told = [whose] if evidence.attack.startswith(title) else [title, whose]
    lines = [line for one in told for line in textwrap.wrap(one, columns)]
    figure.suptitle("\n".join(lines), fontsize=9)


def _logarithmic_where_it_helps(axes: Axes, curve: Curve) -> None:
    points = np.asarray([point for line in curve.lines.values() for point in line], dtype=float).reshape(-1, 4)
    for values, set_scale, axis in (
        (points[:, 0], axes.set_xscale, axes.xaxis),
        (points[:, 1], axes.set_yscale, axes.yaxis),
    ):
        if values.size and values.min() > 0 and values.max() / values.min() >= 30:
            set_scale("log")
            axis.set_major_formatter("{x:g}")


def _stem(evidence: Evidence) -> str:
    return _BETWEEN.join(slug(part) for part in (subject(evidence.tests), attacker(evidence), evidence.attack))


def _free_name(evidence: Evidence, title: str, taken: dict[str, Figure]) -> str:
    stem = f"{_stem(evidence)}{_BETWEEN}{slug(title)}"
    names = (f"{stem}{'' if number == 1 else f'-{number}'}.png" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _write(figure: Figure, path: Path) -> Path:
    """A palette of 256 colours: nobody sees the difference, and files are a third as large."""
    from PIL import Image  # noqa: PLC0415

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})  # a Figure draws with Agg
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)
    return path
