"""Which site was in which round, and what happened to whom."""

from __future__ import annotations

from typing import Final

from bilateral.engine.kind import ROUNDS
from bilateral.report.frame import folded
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.charts import timeline
from bilateral.report.run_page.facts import RunFacts

MOST_MARKS: Final = 60


def sites(facts: RunFacts) -> Html:
    if not facts.steps and not facts.marks:
        return Html()
    present: dict[str, list[int]] = {}
    for step in facts.steps:
        for site in step.sites:
            present.setdefault(site, []).append(step.number)
    sites = list(dict.fromkeys((*facts.sites, *present)))
    shown = sites[:40]
    across = [(mark.number, mark.what) for mark in facts.marks if not mark.site]
    marks = [(mark.site, mark.number, mark.what) for mark in facts.marks if mark.site]
    last = max([facts.status.num_rounds, *(step.number for step in facts.steps), 1])
    there = "in the round's sum" if facts.kind == ROUNDS else "at work"
    title = f"Which site was in which {facts.status.unit}" + (
        f" (the first {len(shown)} sites)" if shown != sites else ""
    )
    picture = el("div", timeline(title, shown, last, present, marks, across, there), class_="card")
    rows = [(f"{mark.number:,}", mark.site or "the run", mark.what, mark.reason) for mark in facts.marks[-MOST_MARKS:]]
    counts = [
        (site.name, f"{site.num_rounds:,}", f"{site.num_misses:,}", f"{site.num_refused:,}", site.state.value)
        for site in facts.status.sites
    ]
    head = ("site", f"{facts.status.unit}s in the model", "missed", "refused", "at the end")
    by_site = table(head, counts, caption="Sites", numeric=(1, 2, 3))
    if not rows:
        calm = el("p", "No site was missed, no message was refused, nothing was restarted.", class_="note")
        return joined((picture, calm, folded("Sites", by_site)))
    caption = "What happened" if len(rows) == len(facts.marks) else f"The last {len(rows)} of {len(facts.marks)} events"
    told = table((facts.status.unit, "site", "what", "why"), rows, caption=caption)
    return joined((picture, folded("What happened", told), folded("Sites", by_site)))
