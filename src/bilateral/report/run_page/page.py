"""One run as one HTML file that needs nothing else: no network, no scripts. What people ask first stands first.

    write_run_page(Path("out"))                  # out/report.html

Formal guarantee (tests/report/test_run_page.py): whatever the run's files contain is shown, not interpreted; the page
loads nothing, neither from other files nor from an address.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from bilateral.learning.evaluation import main_metric
from bilateral.report.audit_html import flat
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.attacks import attacks
from bilateral.report.run_page.charts import COLOURS, Line, curves, timeline
from bilateral.report.run_page.costs import costs
from bilateral.report.run_page.facts import RunFacts, facts_of
from bilateral.report.run_page.hidden import guarantee, hidden_of_the_model, privacy
from bilateral.report.run_page.questions import Answer, Tone, answers
from bilateral.report.run_page.sight import who_sees_what
from bilateral.report.run_page.style import STYLE
from bilateral.runs.rounds.loop import REFERENCE_PREFIX
from bilateral.version import __version__

REPORT = "report.html"
_CLASSES: dict[Tone, str] = {"held": "ok", "admitted": "warn", "open": "warn", "broken": "bad"}
_SIGNS: dict[Tone, str] = {"held": "✓", "admitted": "!", "open": "?", "broken": "✗"}
_TOLD: dict[Tone, str] = {
    "held": "claimed and not broken: ",
    "admitted": "admitted: ",
    "open": "open: ",
    "broken": "claim broken: ",
}
_MOST_MARKS = 60


def write_run_page(directory: Path, *, audit: Path | None = None, output: Path | None = None) -> Path:
    """The page of a run, by default into its directory. `audit`: the folder of an audit of the same plan."""
    page = output if output is not None else directory / REPORT
    text = run_page(facts_of(directory, audit))
    partial = page.with_name(f"{page.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, page)  # noqa: PTH105 (the atomic one)
    return page


def run_page(facts: RunFacts) -> str:
    """The whole page."""
    found = answers(facts)
    sections: Sequence[tuple[str, Html]] = (
        ("What you came to know", el("div", [_card(one) for one in found], class_="grid")),
        ("Learning", _learning(facts)),
        ("Cost", costs(facts)),
        ("What is hidden of the model", hidden_of_the_model(facts)),
        ("Who sees what", joined((who_sees_what(facts), guarantee(facts)))),
        ("Privacy spent", privacy(facts)),
        ("Sites and faults", _sites(facts)),
        ("Attacks", attacks(facts)),
        ("Settings and versions", _settings(facts)),
    )
    title = _title(facts)
    body = [
        el("section", el("h2", name, id=_anchor(name)), content, aria_labelledby=_anchor(name))
        for name, content in sections
        if content
    ]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("title", f"Run report: {title}"),
        el("style", Html(STYLE)),
    )
    made = f"bilateral {__version__} · {datetime.now(UTC):%-d %B %Y} · plan {facts.digest}"
    to_settings = el("a", "settings", href=f"#{_anchor('Settings and versions')}")
    top = el("header", el("p", made, " · ", to_settings, class_="meta"), el("h1", title), _in_short(facts))
    skip = el("a", "To the answers", href="#answers", class_="skip")
    main = el("main", top, _alarm(found), body, id="answers")
    return f"<!DOCTYPE html>\n{el('html', head, el('body', skip, main), lang='en')}\n"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _title(facts: RunFacts) -> str:
    count = len(facts.sites)
    protection = str(facts.guarantee.get("protection") or facts.settings.get("protection") or facts.kind)
    sites = f"{count} site{'s' if count != 1 else ''}, " if count else ""
    return f"{facts.status.data}, {facts.status.model}, {sites}{protection}"


def _in_short(facts: RunFacts) -> Html:
    status, result = facts.status, facts.result
    seconds = result.get("seconds")
    said = [f"{status.round:,} of {status.num_rounds:,} {status.unit}s"]
    said += [_duration(float(seconds))] if isinstance(seconds, int | float) else []
    said += [f"state: {status.state.value}" + (f" ({status.reason})" if status.reason else "")]
    if status.metrics:
        name, value = main_metric(dict(status.metrics))
        plain = result.get("metrics_of_fedavg")
        beside = f" (FedSGD, same seed: {plain[name]:.4f})" if isinstance(plain, dict) and name in plain else ""
        said.append(f"{name.replace('_', ' ')} {value:.4f}{beside}")
    if facts.audit is None:
        said.append("not audited")
    elif not facts.audit_note:
        said.append(f"audited: {len(facts.audit.evidence)} attacks with controls")
    return el("p", " · ".join(said), class_="meta")


def _alarm(found: Sequence[Answer]) -> Html:
    broken = [one for one in found if one.tone == "broken"]
    if not broken:
        return Html()
    lines = [el("li", f"{one.question} {one.text}") for one in broken]
    return el(
        "div", el("strong", "This plan claims what an attack broke."), el("ul", lines), class_="alarm", role="alert"
    )


def _card(one: Answer) -> Html:
    sign = el("span", f"{_SIGNS[one.tone]} ", aria_hidden="true")
    tag = el("span", sign, one.short, class_=f"tag {_CLASSES[one.tone]}", title=_TOLD[one.tone].rstrip(": "))
    rests = el("details", el("summary", "What this rests on"), el("p", one.rests_on)) if one.rests_on else None
    return el("div", el("h3", one.question), tag, el("p", one.text), rests, class_="card")


def _learning(facts: RunFacts) -> Html:
    rows: list[Mapping[str, float]] = [row for row in facts.rows if "round" in row]
    rows = rows or [{"round": float(number), **metrics} for number, metrics in facts.status.history]
    if not rows:
        return Html()
    names = [name for name in rows[-1] if name != "round" and not name.startswith((REFERENCE_PREFIX, "difference"))]
    if not names:
        return Html()
    metrics = {name: rows[-1][name] for name in names}
    first = main_metric(metrics)[0] if metrics else names[0]
    own = str(facts.settings.get("protection", "this run"))

    def lines(name: str) -> list[Line]:
        plain = [(row["round"], row[REFERENCE_PREFIX + name]) for row in rows if REFERENCE_PREFIX + name in row]
        mine = [(row["round"], row[name]) for row in rows if name in row]
        return [Line("FedSGD, same seed", plain, COLOURS[1], wide=True), Line(own, mine)]

    unit = f"{facts.status.unit}s"
    pictures = [
        el("div", curves(_said(name), lines(name), x_name=unit, show=_show(name)), class_="card")
        for name in dict.fromkeys((first, *names))
    ]
    shown = [name for name in rows[-1] if name != "round"]
    figures = [
        [f"{row['round']:,.0f}", *(f"{row[name]:.4g}" if name in row else "-" for name in shown)] for row in rows
    ]
    head = (facts.status.unit, *(_said(name) for name in shown))
    listed = table(head, figures, caption="Every evaluation", numeric=range(1, len(head)))
    more = el("details", el("summary", "Other measures"), el("div", pictures[1:], class_="grid two"))
    return joined((pictures[0], more if len(pictures) > 1 else None, _as_details("The figures", listed)))


def _as_details(title: str, content: Html) -> Html:
    return el("details", el("summary", title), content)


def _said(name: str) -> str:
    if name.startswith(REFERENCE_PREFIX):
        return f"{_said(name.removeprefix(REFERENCE_PREFIX))} of FedSGD"
    return {"difference_to_fedavg": "difference of weights to FedSGD"}.get(name, name.replace("_", " "))


def _show(name: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.0f} %") if "accuracy" in name else (lambda value: f"{value:.3g}")


def _sites(facts: RunFacts) -> Html:
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
    title = f"Which site was in which {facts.status.unit}" + (
        f" (the first {len(shown)} sites)" if shown != sites else ""
    )
    picture = el("div", timeline(title, shown, last, present, marks, across), class_="card")
    rows = [(f"{mark.number:,}", mark.site or "the run", mark.what, mark.reason) for mark in facts.marks[-_MOST_MARKS:]]
    counts = [
        (site.name, f"{site.num_rounds:,}", f"{site.num_misses:,}", f"{site.num_refused:,}", site.state.value)
        for site in facts.status.sites
    ]
    head = ("site", f"{facts.status.unit}s in the model", "missed", "refused", "at the end")
    by_site = table(head, counts, caption="Sites", numeric=(1, 2, 3))
    if not rows:
        calm = el("p", "No site was missed, no message was refused, nothing was restarted.", class_="note")
        return joined((picture, calm, _as_details("Sites", by_site)))
    caption = "What happened" if len(rows) == len(facts.marks) else f"The last {len(rows)} of {len(facts.marks)} events"
    told = table((facts.status.unit, "site", "what", "why"), rows, caption=caption)
    return joined((picture, _as_details("What happened", told), _as_details("Sites", by_site)))


def _settings(facts: RunFacts) -> Html:
    rows = [(el("code", key), el("code", _text(value))) for key, value in flat(facts.settings)]
    versions = [
        ("bilateral", __version__),
        ("torch", torch.__version__),
        ("Python", platform.python_version()),
        ("plan digest", facts.digest),
        ("engine", facts.status.engine or "-"),
        ("began", f"{facts.began:%Y-%m-%d %H:%M:%S} UTC" if facts.began else "-"),
        ("last event", f"{facts.ended:%Y-%m-%d %H:%M:%S} UTC" if facts.ended else "-"),
    ]
    told = table(("", ""), versions, caption="Versions of what made this page, and when the run was")
    return joined(
        (told, _as_details("All settings of the plan", table(("setting", "value"), rows, caption="The plan")))
    )


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | Mapping | bool) or value is None else str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
