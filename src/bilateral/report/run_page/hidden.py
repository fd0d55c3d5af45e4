"""What is hidden of the model, and what noise bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from bilateral.errors import BilateralError
from bilateral.protocols.noise.accounting import spent
from bilateral.report.frame import folded
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.charts import Bar, Line, bars, curves
from bilateral.report.run_page.facts import RunFacts

Sent = Literal["sealed", "disguised", "partly", "clear", "join"]
_SENT: Final[dict[Sent, str]] = {
    "sealed": "random numbers to a site",
    "disguised": "with secret factors",
    "partly": "in part with secret factors",
    "clear": "as it is",
    "join": "",
}
_MOST_LAYERS: Final = 120
_MOST_ROWS: Final = 40
_POINTS: Final = 8


def hidden_of_the_model(facts: RunFacts) -> Html:
    """The network layer by layer, and what a site is sent of each; then parameter by parameter."""
    found = facts.result.get("coverage")
    layers = facts.result.get("network") or ()
    if isinstance(found, dict):
        return joined((_said_of(found), network(layers, _in_disguise(found)), _coverage(found)))
    subjects = {claim["subject"] for claim in facts.guarantee.get("claims", ())}
    if "sealed model" in subjects:
        text = "All of it: a site is sent words that are uniform to it, and knows the architecture alone."
        if any(layer["frozen"] for layer in layers):
            text = "What learns: a site is sent words that are uniform to it. Frozen layers it has as they are."
        return joined((el("p", text), network(layers, _sealed)))
    if any(leak["ledger_line"] == 0 for leak in facts.guarantee.get("leaks", ())):
        text = "Nothing: every site is sent the model as it is."
        return joined((el("p", text), network(layers, lambda _: "clear")))
    return Html()


def network(layers: Sequence[Mapping[str, Any]], sent: Callable[[Mapping[str, Any]], Sent]) -> Html:
    """The graph of the network as a list that flows: boxes in the order of computing, and where several meet."""
    if not layers:
        return Html()
    shown = layers[:_MOST_LAYERS]
    boxes, before = [], ""
    kinds: dict[Sent, None] = {}
    for layer in shown:
        is_join = not layer["elements"]
        how: Sent = "join" if is_join else sent(layer)
        kinds.setdefault(how)
        inputs = [str(one) for one in layer["inputs"]]
        comes = f"from {' and '.join(inputs)}" if inputs and inputs != [before] else ""
        size = "" if is_join else f"{layer['elements']:,} numbers"
        said = el("span", f" {_SENT[how]}", class_="unseen") if not is_join else None
        boxes.append(
            el(
                "li",
                el("strong", str(layer["kind"])),
                said,
                el("span", " · ".join(one for one in (str(layer["name"]), size) if one), class_="what"),
                el("span", comes, class_="what") if comes else None,
                class_=f"layer {how}",
            )
        )
        before = str(layer["name"])
    more = f" (the first {_MOST_LAYERS} of {len(layers)} layers)" if len(layers) > _MOST_LAYERS else ""
    key = [
        el("li", el("span", class_=f"swatch {how}", aria_hidden="true"), _SENT[how]) for how in kinds if how != "join"
    ]
    title = f"The network, as a site is sent it{more}"
    graph = el("ol", boxes, class_="net", aria_label=title)
    return el("figure", el("ul", key, class_="key"), graph, el("figcaption", title), class_="card")


def _sealed(layer: Mapping[str, Any]) -> Sent:
    return "clear" if layer["frozen"] == layer["elements"] else "partly" if layer["frozen"] else "sealed"


def _in_disguise(found: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Sent]:
    """By the parameters whose names begin with the layer's."""

    def sent(layer: Mapping[str, Any]) -> Sent:
        name = str(layer["name"]).partition(" (call ")[0]
        own = [row for row in found["rows"] if row["name"] == name or row["name"].startswith(f"{name}.")]
        scaled, whole = sum(row["scaled"] for row in own), sum(row["elements"] for row in own)
        return "clear" if not scaled else "disguised" if scaled == whole else "partly"

    return sent


def _said_of(found: Mapping[str, Any]) -> Html:
    clear = 100 * float(found["fraction_clear"])
    text = (
        f"{found['parameters']:,} parameters, {clear:.3g} % of them in the clear; {found['scale_factors']:,} secret "
        f"factors; {found['movable_channels']:,} of {found['hidden_channels']:,} channels change places "
        "every round. This is a disguise: a site that tries undoes it (ledger, lines 1 and 15)."
    )
    return el("p", text)


def _coverage(found: dict[str, Any]) -> Html:
    rows = found["rows"]
    drawn = [Bar(f"{row['name']} ({row['kind']})", _parts(row), f"{row['elements']:,}") for row in rows[:_MOST_ROWS]]
    left_out = f" (the first {_MOST_ROWS} of {len(rows)})" if len(rows) > _MOST_ROWS else ""
    title = f"Parameters by what a site is sent of them; figures are numbers of elements{left_out}"
    head = ("parameter", "kind", "shape", "scaled", "may move", "clear", "remark")
    lines = [
        (row["name"], row["kind"], " x ".join(map(str, row["shape"])), f"{row['scaled']:,}", f"{row['movable']:,}",
         f"{row['clear']:,}", row["remark"])
        for row in rows
    ]  # fmt: skip
    listed = table(head, lines, caption="All parameters, by elements", numeric=(3, 4, 5))
    return folded("Every parameter", el("div", bars(title, drawn), class_="card"), listed)


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
