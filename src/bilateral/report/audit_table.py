"""An audit on the command line: a loud summary, then a table a claim. Reads at 100 columns, and without colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bilateral.audit.auditor import NOT_ASKED, AuditResult, Skipped
from bilateral.audit.verdict import BESIDE, ClaimVerdict, Finding, Word
from bilateral.report.audit_words import (
    CAVEAT,
    LEAKS_TITLE,
    ORDER,
    OWN_TITLE,
    about_whom,
    attacker,
    figure_of,
    heading,
    leaks,
    mean_of,
    own_claims,
    shown_metrics,
    spoken,
    tally,
)

STYLES: dict[Word, str] = {
    "broken": "bold red",
    "holds": "green",
    "proves nothing": "yellow",
    "not tested": "yellow",
}


def audit_tables(result: AuditResult, *, details: bool = True) -> list[RenderableType]:
    """Everything that an audit found, claim by claim, whether tested or not.

    Without `details` an attack is one row: what it got, and the same figure for its controls.
    """
    parts: list[RenderableType] = [summary(result)]
    for title, verdicts in ((OWN_TITLE, own_claims(result.verdicts)), (LEAKS_TITLE, leaks(result.verdicts))):
        parts += [Text(f"\n{title}", "bold underline"), *(_claim(verdict, details=details) for verdict in verdicts)]
        if not verdicts:
            parts.append(Text("  nothing", "dim"))
    if result.skipped:
        parts.append(_skipped(result.skipped))
    return parts


def summary(result: AuditResult) -> Panel:
    """How many claims hold, are broken, or are not decided; the worst first."""
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    lines = [
        _text(("Claims of this plan: ", "bold"), _tally(own)),
        _text(("Papers' claims and admitted leaks: ", "bold"), _tally(admitted)),
        _text((CAVEAT, "dim")),
    ]
    broken = "; ".join(str(verdict.tests) for verdict in own if verdict.verdict == "broken")
    if broken:
        lines.insert(0, _text(("THIS PLAN'S OWN CLAIM IS BROKEN: ", STYLES["broken"]), (broken, "bold")))
    if not result.finished:
        lines.insert(0, _text(("This audit was stopped before its end.", "bold yellow")))
    title = f"Audit of {result.protection} ({result.effort} effort, {result.seconds:.0f} s of work)"
    return Panel(Group(*lines), title=Text(title), border_style="red" if broken else "default", padding=(0, 1))


def _text(*parts: str | tuple[str, str]) -> Text:
    """Text that wraps, also on a console that leaves wrapping to the terminal."""
    return Text.assemble(*parts, no_wrap=False, overflow="fold")


def _tally(verdicts: Sequence[ClaimVerdict]) -> tuple[str, str]:
    words = {verdict.verdict for verdict in verdicts}
    worst = next((word for word in ORDER if word in words), None)
    return tally(verdicts), STYLES[worst] if worst else "dim"


def _claim(verdict: ClaimVerdict, *, details: bool) -> RenderableType:
    """The claim with its verdict, and a row for each attack that was tried."""
    parts: list[RenderableType] = [
        _text("\n", (spoken(verdict.verdict), STYLES[verdict.verdict]), "  ", (heading(verdict), "bold")),
        _text((about_whom(verdict), "dim")),
    ]
    if details or verdict.verdict in ("not tested", "proves nothing"):  # else the rows say it
        parts.append(_text(verdict.reason))
    elif BESIDE in verdict.reason:
        parts.append(_text((BESIDE + verdict.reason.partition(BESIDE)[2], "yellow")))
    if verdict.findings:
        parts.append(_attacks(verdict.findings) if details else _short_attacks(verdict.findings))
    if verdict.verdict != "proves nothing":  # else the claim's own reason says it
        void = [found for found in verdict.findings if found.verdict == "proves nothing"]
        parts += [_text((f"{found.evidence.attack} proves nothing: {found.reason}", "yellow")) for found in void]
    return Group(*parts)


def _attacks(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=0, expand=True)
    table.add_column("verdict", width=10)
    for title, ratio in (("attack", 26), ("attacker gets", 21), ("positive control", 21), ("chance", 21)):
        table.add_column(title, ratio=ratio, no_wrap=False)
    for found in findings:
        for row in _rows(found):
            table.add_row(*row)
    return table


def _short_attacks(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=0, expand=True)
    table.add_column("", width=9)
    for title, ratio in (("attack", 38), ("attacker gets", 28), ("control", 9), ("chance", 9)):
        table.add_column(title, ratio=ratio, no_wrap=False)
    for found in findings:
        evidence, metric = found.evidence, shown_metrics(found)[-1]
        word = {"broken": "BROKEN", "holds": "nothing found"}.get(found.verdict, found.verdict)
        bound = "" if evidence.bound is None else f", claimed {evidence.bound:g}"
        table.add_row(
            _text((word, STYLES[found.verdict])),
            _text(evidence.attack, (f" ({attacker(evidence)})", "dim")),
            _text(figure_of(evidence.target, metric), (f" {metric.name}{bound}", "dim")),
            *(_text(mean_of(condition, metric)) for condition in (evidence.positive, evidence.negative)),
        )
    return table


def _rows(found: Finding) -> Iterator[tuple[Text, ...]]:
    """One a metric that is shown; the first says whose attack it is and what the controls were."""
    evidence = found.evidence
    word = "holds (nothing found)" if found.verdict == "holds" else spoken(found.verdict)
    head = _text((word, STYLES[found.verdict])), _text(evidence.attack, "\n", (attacker(evidence), "dim"))
    bound = "" if evidence.bound is None else f"\nclaimed: {evidence.bound:g}"
    controls = [
        (condition, condition.what if condition else "none") for condition in (evidence.positive, evidence.negative)
    ]
    for metric in shown_metrics(found):
        got = _text(figure_of(evidence.target, metric), (f"\n{metric.name}", "dim"), bound)
        yield (*head, got, *(_text(figure_of(condition, metric), (f"\n{what}", "dim")) for condition, what in controls))
        head, controls, bound = (Text(), Text()), [(condition, "") for condition, _ in controls], ""


def _skipped(skipped: Sequence[Skipped]) -> RenderableType:
    asked = [one for one in skipped if one.reason != NOT_ASKED]
    lines = [_text((f"{one.title}: {one.reason}", _style_of(one))) for one in asked]
    if len(asked) < len(skipped):
        lines.append(_text((f"{len(skipped) - len(asked)} experiments that were not asked for", "dim")))
    return Group(Text("\nNot tried", "bold underline"), *lines)


def _style_of(one: Skipped) -> str:
    return "yellow" if one.reason.startswith("failed") else "dim"
