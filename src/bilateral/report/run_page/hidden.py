"""What a run hides from whom, if what is so; what it admits; what is hidden of the model; what is spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bilateral.audit.ledger import LEDGER
from bilateral.errors import BilateralError
from bilateral.protocols.noise.accounting import spent
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.charts import Bar, Line, bars, curves
from bilateral.report.run_page.facts import RunFacts

_MOST_ROWS: Final = 40
_POINTS: Final = 8


def guarantee(facts: RunFacts) -> Html:
    """Claims and admitted leaks, in the guarantee's own words, with what closes a leak."""
    claims = [
        (claim["whom"], joined((claim["what"], el("span", f"if {claim['assumption']}", class_="what"))))
        for claim in facts.guarantee.get("claims", ())
    ]
    leaks = [
        (leak["whom"], joined((leak["what"], el("span", _remedy(leak["ledger_line"]), class_="what"))))
        for leak in facts.guarantee.get("leaks", ())
    ]
    nothing = el("p", "This run claims to hide nothing.", class_="note")
    hidden = table(("hidden from", "what"), claims, caption="What this run claims") if claims else nothing
    admitted = table(("open to", "what"), leaks, caption="What it does not hide, and says so") if leaks else Html()
    return joined((hidden, admitted))


def _remedy(line: int) -> str:
    closed = f"; what closes it: {LEDGER[line].closed_by}" if line in LEDGER else ""
    return f"line {line} of the leakage ledger{closed}"


def hidden_of_the_model(facts: RunFacts) -> Html:
    """The network, parameter by parameter."""
    found = facts.result.get("coverage")
    if isinstance(found, dict):
        return _coverage(found)
    subjects = {claim["subject"] for claim in facts.guarantee.get("claims", ())}
    if "sealed model" in subjects:
        text = "All of it: a site is sent words that are uniform to it, and knows the architecture alone."
    elif any(leak["ledger_line"] == 0 for leak in facts.guarantee.get("leaks", ())):
        text = "Nothing: every site is sent the model as it is."
    else:
        return Html()
    return el("p", text)


def _coverage(found: dict[str, Any]) -> Html:
    rows = found["rows"]
    drawn = [Bar(f"{row['name']} ({row['kind']})", _parts(row), f"{row['elements']:,}") for row in rows[:_MOST_ROWS]]
    left_out = f" (the first {_MOST_ROWS} of {len(rows)})" if len(rows) > _MOST_ROWS else ""
    title = f"Parameters by what a site is sent of them; figures are numbers of elements{left_out}"
    clear = 100 * float(found["fraction_clear"])
    text = (
        f"{found['parameters']:,} parameters, {clear:.3g} % of them in the clear; {found['scale_factors']:,} secret "
        f"factors; {found['movable_channels']:,} of {found['hidden_channels']:,} channels change places "
        "every round. This is a disguise: a site that tries undoes it (ledger, lines 1 and 15)."
    )
    head = ("parameter", "kind", "shape", "scaled", "may move", "clear", "remark")
    lines = [
        (row["name"], row["kind"], " x ".join(map(str, row["shape"])), f"{row['scaled']:,}", f"{row['movable']:,}",
         f"{row['clear']:,}", row["remark"])
        for row in rows
    ]  # fmt: skip
    listed = table(head, lines, caption="All parameters, by elements", numeric=(3, 4, 5))
    picture = el("div", bars(title, drawn), class_="card")
    return joined((el("p", text), picture, el("details", el("summary", "All parameters"), listed)))


def _parts(row: dict[str, Any]) -> dict[str, float]:
    """As shares of the parameter: large ones would leave nothing to see of small ones."""
    whole = max(1, row["elements"])
    return {"with a secret factor": row["scaled"] / whole, "in the clear": row["clear"] / whole}


def privacy(facts: RunFacts) -> Html:
    """What noise bounds, and how the bound grows over rounds."""
    if not facts.privacy:
        return Html()
    rows = [
        (
            row["observer"],
            f"{row['epsilon_per_round']:.3g}",
            f"{row['epsilon']:.3g}",
            f"{row['delta']:g}",
            row["assumption"],
        )
        for row in facts.privacy.get("rows", ())
    ]
    status = facts.privacy.get("status", "")
    said = f"{status[:1].upper()}{status[1:]}; the unit is one {facts.privacy.get('unit', 'sample')}."
    head = ("against", "epsilon a round", "epsilon in all", "delta", "if")
    listed = table(head, rows, caption="What the whole run spends", numeric=(1, 2, 3))
    return joined((el("p", said), _growth(facts.privacy), listed))


def _growth(found: Mapping[str, Any]) -> Html:
    """Epsilon of a run that ends earlier, by the accountant that made the bound.

    Drawn of what was proved alone: a report that composes over rounds holds the figures that its accountant took.
    """
    figures, rows = found.get("deviations", {}), found.get("rows", ())
    needed = ("effective multiplier", "largest sampling rate", "rounds of one client")
    if not rows or not all(name in figures for name in needed):
        return Html()
    multiplier, rate, total = (float(figures[name]) for name in needed)
    numbers = sorted({max(1, round(total * part / _POINTS)) for part in range(1, _POINTS + 1)})
    delta = float(rows[0]["delta"])
    try:
        points = [(float(k), spent(multiplier, rate, k, delta).epsilon) for k in numbers]
    except BilateralError:  # figures of another version
        return Html()
    title = f"Epsilon over the rounds of one client, at delta {delta:g}"
    return el(
        "div", curves(title, [Line("epsilon", points)], x_name="rounds", show=lambda v: f"{v:.3g}"), class_="card"
    )
