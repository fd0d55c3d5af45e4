"""One run as one HTML file that needs nothing else: no network, no scripts. What people ask first stands first.

    write_run_page(Path("out"))                  # out/report.html

Formal guarantee (tests/report/test_run_page.py): whatever the run's files contain is shown, not interpreted; the page
loads nothing, neither from other files nor from an address.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bilateral.engine import kind as kinds
from bilateral.engine.run_directory import RunDirectory, write_json
from bilateral.learning.evaluation import main_metric
from bilateral.report.frame import SETTINGS, duration, guarantee_tables, page, settings_section
from bilateral.report.html import Html, el, joined
from bilateral.report.run_page.asked import questions_asked, sight_of_answers
from bilateral.report.run_page.attacks import attacks, can_be_audited
from bilateral.report.run_page.costs import costs
from bilateral.report.run_page.facts import RunFacts, facts_of
from bilateral.report.run_page.hidden import hidden_of_the_model, privacy
from bilateral.report.run_page.learning import learning, yardstick
from bilateral.report.run_page.questions import answers
from bilateral.report.run_page.sharing import gains, networks, shared_costs, sight_of_sharing
from bilateral.report.run_page.sight import who_sees_what
from bilateral.report.run_page.sites import sites
from bilateral.runs.hetero.server import MEAN_ACCURACY
from bilateral.serving.hosted.plan import dump_serving_plan
from bilateral.serving.hosted.server import ServingResult

REPORT = "report.html"


def write_run_page(directory: Path, *, audit: Path | None = None, output: Path | None = None) -> Path:
    """The page of a run, by default into its directory. `audit`: the folder of an audit of the same plan."""
    file = output if output is not None else directory / REPORT
    text = run_page(facts_of(directory, audit))
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, file)  # noqa: PTH105 (the atomic one)
    return file


def write_service_page(folder: Path, ended: ServingResult) -> Path:
    """The page of a service that ended, in the folder of what it keeps; `bilateral report` makes it anew from there."""
    directory = RunDirectory(folder)
    (folder / "plan.toml").write_text(dump_serving_plan(ended.plan), encoding="utf-8")
    write_json(directory.result, ended.as_dict())
    return write_run_page(folder)


def run_page(facts: RunFacts) -> str:
    """The whole page."""
    sections: Sequence[tuple[str, Html]] = (
        *_by_kind(facts),
        ("Privacy spent", privacy(facts)),
        ("Sites and faults", sites(facts)),
        ("Attacks", attacks(facts)),
        (SETTINGS, settings_section(facts.settings, _versions(facts))),
    )
    return page(_title(facts), _in_short(facts), answers(facts), sections, kind="Run report", digest=facts.digest)


def _by_kind(facts: RunFacts) -> Sequence[tuple[str, Html]]:
    """What a run of this kind came to, what it cost, and who saw what."""
    said = guarantee_tables(facts.guarantee)
    match facts.kind:
        case kinds.HETERO:
            return (
                ("Learning", gains(facts)),
                ("Cost", shared_costs(facts)),
                ("What is hidden of the networks", networks(facts)),
                ("Who sees what", joined((sight_of_sharing(facts.guarantee), said))),
            )
        case kinds.SERVING:
            return (
                ("Questions", questions_asked(facts)),
                ("Who sees what", joined((sight_of_answers(facts), said))),
            )
    return (
        ("Learning", learning(facts)),
        ("Cost", costs(facts)),
        ("What is hidden of the model", hidden_of_the_model(facts)),
        ("Who sees what", joined((who_sees_what(facts), said))),
    )


def _title(facts: RunFacts) -> str:
    if facts.kind == kinds.SERVING:
        count = len(facts.settings.get("clients", ()))
        return f"Answers of the model of {facts.status.data}, to {count} client{'s' if count != 1 else ''}"
    count = len(facts.sites)
    protection = str(facts.guarantee.get("protection") or facts.settings.get("protection") or facts.kind)
    sites = f"{count} site{'s' if count != 1 else ''}, " if count else ""
    return f"{facts.status.data}, {facts.status.model}, {sites}{protection}"


def _main(metrics: dict[str, float]) -> tuple[str, float]:
    """The measure to name first; kinds of run have measures of their own."""
    return (MEAN_ACCURACY, metrics[MEAN_ACCURACY]) if MEAN_ACCURACY in metrics else main_metric(metrics)


def _in_short(facts: RunFacts) -> Html:
    status, result = facts.status, facts.result
    seconds = result.get("seconds")
    said = [f"{status.round:,} of {status.num_rounds:,} {status.unit}s"]
    said += [duration(float(seconds))] if isinstance(seconds, int | float) else []
    said += [f"state: {status.state.value}" + (f" ({status.reason})" if status.reason else "")]
    if status.metrics:
        name, value = _main(dict(status.metrics))
        plain = result.get("metrics_of_fedavg")
        beside = (
            f" ({yardstick(facts)}, same seed: {plain[name]:.4f})" if isinstance(plain, dict) and name in plain else ""
        )
        said.append(f"{name.replace('_', ' ')} {value:.4f}{beside}")
    if facts.audit is None:
        said += ["not audited"] if can_be_audited(facts) else []
    elif not facts.audit_note:
        said.append(f"audited: {len(facts.audit.evidence)} attacks with controls")
    return el("p", " · ".join(said), class_="meta")


def _versions(facts: RunFacts) -> list[tuple[str, str]]:
    known = [
        ("plan digest", facts.digest),
        ("engine", facts.status.engine),
        ("began", f"{facts.began:%Y-%m-%d %H:%M:%S} UTC" if facts.began else None),
        ("last event", f"{facts.ended:%Y-%m-%d %H:%M:%S} UTC" if facts.ended else None),
    ]
    return [(name, value) for name, value in known if value]
