"""What a run cost: time and bytes, by party and by what they were for."""

from __future__ import annotations

import statistics
from typing import Final

from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.charts import Bar, bars
from bilateral.report.run_page.facts import RunFacts
from bilateral.report.run_page.numbers import megabytes, number_card

MODEL, UPLOAD, MASKS, SHARES, DEALING, OTHER = "the model", "uploads", "masks", "shares", "dealing", "other"
_PHASES: Final = {
    "PlainModel": MODEL,
    "PerturbedModel": MODEL,
    "SealedModel": SHARES,
    "SealedTurnReply": SHARES,
    "SealedTurn": SHARES,
    "SealedWeights": SHARES,
    "DealRequest": DEALING,
    "Dealt": DEALING,
    "Upload": UPLOAD,
    "MaskedUpload": UPLOAD,
    "KeyRequest": MASKS,
    "KeyAnnouncement": MASKS,
    "Roster": MASKS,
    "MaskOpening": MASKS,
    "SealedShares": MASKS,
    "RoutedShares": MASKS,
    "RangeRefusal": MASKS,
    "ShareComplaint": MASKS,
    "SurvivorList": MASKS,
    "SurvivorSignature": MASKS,
    "UnmaskRequest": MASKS,
    "RevealedShares": MASKS,
}
"""What a message is for; any other kind is called by its name."""
_MOST_PARTIES: Final = 12


def phase_of(message: str) -> str:
    """What a kind of message is for."""
    return _PHASES.get(message, OTHER)


def costs(facts: RunFacts) -> Html:
    """A round's time and bytes, then who sent and received what."""
    seconds = [step.seconds for step in facts.steps]
    traffic = facts.result.get("traffic") or ()
    if not seconds and not traffic:
        return Html()
    cards = []
    unit, count = facts.status.unit, max(1, len(facts.steps))
    if seconds:
        cards.append(number_card(f"{statistics.median(seconds):.3g} s", f"a {unit}, by the clock (median; all sites)"))
    up, down = facts.result.get("megabytes_up"), facts.result.get("megabytes_down")
    sites = max(1, len(facts.sites))
    if isinstance(up, int | float) and isinstance(down, int | float) and facts.steps:
        cards.append(number_card(megabytes(up / count / sites), f"sent by a site in a {unit} (mean)"))
        cards.append(number_card(megabytes(down / count / sites), f"received by a site in a {unit} (mean)"))
    return joined((el("div", cards, class_="grid"), _by_party(list(traffic))))


def _by_party(traffic: list[dict[str, object]]) -> Html:
    rows = [
        (str(row["party"]), str(row["direction"]), phase_of(str(row["message"])), float(str(row["megabytes"])))
        for row in traffic
        if {"party", "direction", "message", "megabytes"} <= row.keys()
    ]
    if not rows:
        return Html()
    parties = list(dict.fromkeys(party for party, *_ in rows))
    pictures = []
    for direction, title in (("up", "Sent to the server, whole run"), ("down", "Received from the server, whole run")):
        drawn = []
        for party in parties[:_MOST_PARTIES]:
            parts: dict[str, float] = {}
            for name, way, phase, amount in rows:
                if (name, way) == (party, direction):
                    parts[phase] = parts.get(phase, 0.0) + amount
            drawn.append(
                Bar(party, dict(sorted(parts.items(), key=lambda one: -one[1])), megabytes(sum(parts.values())))
            )
        more = f" (the first {_MOST_PARTIES} of {len(parties)} parties)" if len(parties) > _MOST_PARTIES else ""
        pictures.append(el("div", bars(title + more, drawn), class_="card"))
    kinds: dict[tuple[str, str], float] = {}
    for row in traffic:
        key = (str(row["message"]), str(row["direction"]))
        kinds[key] = kinds.get(key, 0.0) + float(str(row["megabytes"]))
    lines = [
        (kind, phase_of(kind), "to the server" if way == "up" else "to sites", megabytes(amount))
        for (kind, way), amount in sorted(kinds.items(), key=lambda one: -one[1])
    ]
    listed = table(("message", "for", "direction", "in all"), lines, caption="Every kind of message", numeric=(3,))
    details = el("details", el("summary", "Every kind of message"), listed)
    return joined((el("div", pictures, class_="grid two", style="margin-top:14px"), details))
