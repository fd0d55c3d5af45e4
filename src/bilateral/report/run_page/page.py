"""One run as one HTML file that needs nothing else: no network, no scripts. What people ask first stands first.

    write_run_page(Path("out"))                  # out/report.html

Formal guarantee (tests/report/test_run_page.py): whatever the run's files contain is shown, not interpreted; the page
loads nothing, neither from other files nor from an address.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bilateral.learning.evaluation import main_metric
from bilateral.report.frame import SETTINGS, duration, guarantee_tables, page, settings_section
from bilateral.report.html import Html, el, joined
from bilateral.report.run_page.attacks import attacks
from bilateral.report.run_page.costs import costs
from bilateral.report.run_page.facts import RunFacts, facts_of
from bilateral.report.run_page.hidden import hidden_of_the_model, privacy
from bilateral.report.run_page.learning import learning
from bilateral.report.run_page.questions import answers
from bilateral.report.run_page.sight import who_sees_what
from bilateral.report.run_page.sites import sites

REPORT = "report.html"


def write_run_page(directory: Path, *, audit: Path | None = None, output: Path | None = None) -> Path:
    """The page of a run, by default into its directory. `audit`: the folder of an audit of the same plan."""
    file = output if output is not None else directory / REPORT
    text = run_page(facts_of(directory, audit))
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, file)  # noqa: PTH105 (the atomic one)
    return file


def run_page(facts: RunFacts) -> str:
    """The whole page."""
    sections: Sequence[tuple[str, Html]] = (
        ("Learning", learning(facts)),
        ("Cost", costs(facts)),
        ("What is hidden of the model", hidden_of_the_model(facts)),
        ("Who sees what", joined((who_sees_what(facts), guarantee_tables(facts.guarantee)))),
        ("Privacy spent", privacy(facts)),
        ("Sites and faults", sites(facts)),
        ("Attacks", attacks(facts)),
        (SETTINGS, settings_section(facts.settings, _versions(facts))),
    )
    return page(_title(facts), _in_short(facts), answers(facts), sections, kind="Run report", digest=facts.digest)


def _title(facts: RunFacts) -> str:
    count = len(facts.sites)
    protection = str(facts.guarantee.get("protection") or facts.settings.get("protection") or facts.kind)
    sites = f"{count} site{'s' if count != 1 else ''}, " if count else ""
    return f"{facts.status.data}, {facts.status.model}, {sites}{protection}"


def _in_short(facts: RunFacts) -> Html:
    status, result = facts.status, facts.result
    seconds = result.get("seconds")
    said = [f"{status.round:,} of {status.num_rounds:,} {status.unit}s"]
    said += [duration(float(seconds))] if isinstance(seconds, int | float) else []
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


def _versions(facts: RunFacts) -> list[tuple[str, str]]:
    return [
        ("plan digest", facts.digest),
        ("engine", facts.status.engine or "-"),
        ("began", f"{facts.began:%Y-%m-%d %H:%M:%S} UTC" if facts.began else "-"),
        ("last event", f"{facts.ended:%Y-%m-%d %H:%M:%S} UTC" if facts.ended else "-"),
    ]
