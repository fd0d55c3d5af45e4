"""A reproduced table as files: figures as JSON and CSV, training curves and reconstructions as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from bilateral.engine.run_directory import write_json
from bilateral.report.reproduced_table import as_csv
from bilateral.reproduce.runner import Outcome
from bilateral.reproduce.store import write_bytes

_SIZE: Final = (7.2, 2.6)
_COLOURS: Final = ("#525252", "#a3a3a3", "#1d4ed8", "#c2410c", "#0f766e", "#7e22ce", "#b45309", "#be185d")


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """`NAME.json`, `NAME.csv`, and pictures where there are any."""
    values, name = outcome.as_dict(), outcome.table.name
    pictures = _pictures(outcome)
    values["pictures"] = [
        {"file": f"{name}-{number}.{kind}", "title": title} for number, (title, kind, _) in enumerate(pictures, 1)
    ]
    for one, (_, _, content) in zip(values["pictures"], pictures, strict=True):
        write_bytes(folder / one["file"], content)
    write_bytes(folder / f"{name}.csv", as_csv(values).encode())
    write_json(folder / f"{name}.json", values, indent=1)
    return [folder / f"{name}.json", folder / f"{name}.csv", *(folder / one["file"] for one in values["pictures"])]


def _pictures(outcome: Outcome) -> list[tuple[str, str, bytes]]:
    """Title, kind and content: curves of the rows that the design names, in one figure, then what rows drew."""
    rows = outcome.found.rows
    drawn = {name: rows[name].curves for name in outcome.design.curves_of if name in rows and rows[name].curves}
    found = [("Curves: " + "; ".join(drawn), "svg", curves_svg(drawn))] if drawn else []
    return found + [(one.title, "png", one.png) for row in rows.values() for one in row.pictures]


def curves_svg(rows: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> bytes:
    """Panels side by side, one a row. The same figures give the same bytes with one version of Matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and needed only here
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "bilateral", "svg.fonttype": "none", "font.size": 7}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        panels: Any = figure.subplots(1, len(rows), squeeze=False)[0]
        for panel, (name, lines) in zip(panels, rows.items(), strict=True):
            for number, (lane, points) in enumerate(lines.items()):
                style = {"linewidth": 3.0, "alpha": 0.5} if number == 0 else {"linewidth": 1.0}
                xs, ys = zip(*points, strict=True)
                panel.plot(xs, ys, color=_COLOURS[number % len(_COLOURS)], label=lane, **style)
            panel.set_title(name, fontsize=7)
            panel.grid(alpha=0.3)
        panels[0].legend(fontsize=6)
        buffer = BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()
