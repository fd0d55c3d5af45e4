"""Of heterogeneous runs: what clients gained from each other, what it cost whom, and who sees what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bilateral.report.frame import folded
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.charts import COLOURS, Bar, Line, bars, curves
from bilateral.report.run_page.facts import RunFacts
from bilateral.report.run_page.numbers import megabytes, number_card
from bilateral.report.run_page.tags import no
from bilateral.runs.hetero.steps import step_of

ALONE, ASKING, AGAIN = "trained alone", "asked (all parties work)", "trained with the answers"
_PHASES: Final = {"train": ALONE, "ask": ASKING, "retrain": AGAIN}
_MOST_CLIENTS: Final = 40


def gains(facts: RunFacts) -> Html:
    """Every architecture's test accuracy: trained alone, then after each time that it asked."""
    clients = [one for one in facts.result.get("clients", ()) if one.get("accuracies")]
    if not clients:
        return Html()
    groups: dict[str, list[list[float]]] = {}
    for client in clients:
        groups.setdefault(str(client["architecture"]), []).append([float(value) for value in client["accuracies"]])
    lines = [
        Line(name, [(float(k), _mean([one[k] for one in found])) for k in range(min(map(len, found)))], colour)
        for (name, found), colour in zip(groups.items(), [*COLOURS] * (1 + len(groups)), strict=False)
    ]
    title = "Test accuracy by architecture (means over its clients): at 0 trained alone, then after each time of asking"
    picture = curves(title, lines, x_name="times asked", show=lambda value: f"{100 * value:.0f} %")
    rows = [
        (str(one["client"]), str(one["architecture"]), f"{one['samples']:,}", f"{one['queries'] or 0:,}",
         _percent(one["accuracies"][0]), _percent(one["accuracies"][-1]),
         f"{100 * (one['accuracies'][-1] - one['accuracies'][0]):+.1f}")
        for one in clients
    ]  # fmt: skip
    head = ("client", "network", "own samples", "asked each time", "alone", "at the end", "gain")
    listed = table(head, rows, caption="Every client, by test accuracy", numeric=range(2, 7))
    yardstick = el("p", "The yardstick is each client's own network, trained alone on its own samples.", class_="note")
    return joined((el("div", picture, class_="card"), yardstick, folded("Every client", listed)))


def shared_costs(facts: RunFacts) -> Html:
    """Time by client and by what it was for, and what asking sent."""
    count: dict[str, int] = {}
    seconds: dict[str, dict[str, float]] = {}
    for step in facts.steps:
        for site in step.sites:
            kind = step_of(count.get(site, 0), (site,)).kind
            count[site] = count.get(site, 0) + 1
            own = seconds.setdefault(site, {})
            own[_PHASES[kind]] = own.get(_PHASES[kind], 0.0) + step.seconds
    if not seconds:
        return Html()
    asked = [own[ASKING] for own in seconds.values() if ASKING in own]
    sent = sum(step.megabytes_up for step in facts.steps)
    num_queries = sum(int(one.get("queries") or 0) for one in facts.result.get("clients", ()))
    times = max(1, int(facts.result.get("iterations") or 1))
    cards = (
        [number_card(f"{sum(asked) / len(asked):.3g} s", "for a client's questions, all parties (mean)")]
        if asked
        else []
    )
    if sent:
        cards.append(number_card(megabytes(sent), "sent by all parties, to answer all questions"))
        if num_queries:
            cards.append(number_card(megabytes(sent / num_queries / times), "sent for one question (mean)"))
    drawn = [
        Bar(name, {phase: own.get(phase, 0.0) for phase in (ALONE, ASKING, AGAIN)}, f"{sum(own.values()):.3g} s")
        for name, own in list(seconds.items())[:_MOST_CLIENTS]
    ]
    title = "Time by client, by the clock of the run" + (
        f" (the first {_MOST_CLIENTS} of {len(seconds)})" if len(seconds) > _MOST_CLIENTS else ""
    )
    picture = el("div", bars(title, drawn), class_="card", style="margin-top:14px")
    return joined((el("div", cards, class_="grid"), picture))


def networks(facts: RunFacts) -> Html:
    """What is hidden of the clients' networks."""
    if not facts.guarantee.get("claims"):
        return el("p", "Nothing is hidden: answers in the clear are for speed, and every network answers as it is.")
    text = (
        "Every client keeps its own network; it never leaves the client whole, and is computed on shares. Weights and "
        "activations are hidden; its shape (layers and sizes) is known to all three parties of a question."
    )
    rows = [(str(one["client"]), str(one["architecture"])) for one in facts.result.get("clients", ())]
    listed = table(("client", "shape that others know"), rows, caption="Networks")
    return joined((el("p", text), folded("Every client's", listed) if rows else None))


def sight_of_sharing(guarantee: Mapping[str, Any]) -> Html:
    """A table of the three parties of a question, of those that follow the protocol and do not work together."""
    subjects = {claim["subject"] for claim in guarantee.get("claims", ())}
    if "shared prediction, server" not in subjects:
        return Html()
    alone = no() if "single answers" in subjects else "partly (ledger, line 5)"
    inside = (
        no() if "activations" in subjects else no("not the sizes") if "signs of activations" in subjects else "signs"
    )
    rows = [
        ("who asks", "its own", no("not the weights"), inside, alone, "yes"),
        ("who answers", no(), "its own", no(), "its own, on shares", no()),
        ("server", no(), no(), no(), no(), no()),
    ]
    head = ("", "the question", "the network that answers", "its activations", "one answer", "the sum of the answers")
    return table(head, rows, caption="Parties that follow the protocol, of which no two work together")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
