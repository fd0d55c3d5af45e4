"""An audit on the command line: a loud summary, a table a claim, and all in short where the prompt comes back.

Reads at 80 columns, and without colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bilateral.audit.auditor import NOT_ASKED, AuditResult, Skipped
from bilateral.audit.verdict import BESIDE, OWN, ClaimVerdict, Finding, Word
from bilateral.report.audit_strength import short_attack, short_figure, telling
from bilateral.report.audit_words import (
    CAVEAT,
    LEAKS_TITLE,
    NEGATIVE,
    ORDER,
    OWN_TITLE,
    POSITIVE,
    about_whom,
    attacker,
    called,
    claimed,
    figure_of,
    heading,
    leaks,
    mean_of,
    own_claims,
    reason_of,
    short_reason,
    shown_metrics,
    spoken,
    spoken_of,
    tally,
    title_of,
    told_apart,
)

STYLES: dict[Word, str] = {
    "broken": "bold red",
    "holds": "green",
    "proves nothing": "yellow",
    "not tested": "yellow",
}
_BESIDE_FIGURES = (
    f"Beside them: the same attack where nothing defends ({POSITIVE}), and where there is nothing to find ({NEGATIVE})."
)
WIDEST = 150
"""Of a table: in a wider terminal the figures would stand far from what they belong to."""


def audit_tables(result: AuditResult, *, details: bool = True) -> list[RenderableType]:
    """Everything that an audit found, claim by claim, whether tested or not.

    Without `details` an attack is one row: what it got, and the same figure for its controls.
    """
    parts: list[RenderableType] = [summary(result)]
    for title, verdicts in ((OWN_TITLE, own_claims(result.verdicts)), (LEAKS_TITLE, leaks(result.verdicts))):
        parts += [
            Text(f"\n{title}", "bold underline"),
            *(_claim(verdict, result, details=details) for verdict in verdicts),
        ]
        if not verdicts:
            parts.append(Text("  nothing", "dim"))
    if result.skipped:
        parts.append(_skipped(result.skipped))
    if result.verdicts:
        parts += [Text("\nIn short", "bold underline"), _in_short(result)]
    return parts


def summary(result: AuditResult) -> Panel:
    """How many claims hold, are broken, or are not decided; the worst first."""
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    lines = [
        _text(("Claims of this plan: ", "bold"), _tally(own, result)),
        _text(("Papers' claims and admitted leaks: ", "bold"), _tally(admitted, result)),
        _text((f"{CAVEAT} {_BESIDE_FIGURES}", "dim")),
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


def _tally(verdicts: Sequence[ClaimVerdict], result: AuditResult) -> tuple[str, str]:
    words = {verdict.verdict for verdict in verdicts}
    worst = next((word for word in ORDER if word in words), None)
    return tally(verdicts, result), STYLES[worst] if worst else "dim"


def _claim(verdict: ClaimVerdict, result: AuditResult, *, details: bool) -> RenderableType:
    """The claim with its verdict, and a row for each attack that was tried."""
    parts: list[RenderableType] = [
        _text("\n", (spoken_of(verdict, result), STYLES[verdict.verdict]), "  ", (heading(verdict), "bold")),
        _text((about_whom(verdict), "dim")),
    ]
    reason = reason_of(verdict, result) if details else short_reason(verdict, result)
    if reason:
        parts.append(_text((reason, "yellow" if reason.startswith(BESIDE) else "")))
    if verdict.findings:
        parts.append(_attacks(verdict.findings) if details else _short_attacks(verdict.findings))
    if verdict.verdict != "proves nothing":  # else the claim's own reason says it
        void = [found for found in verdict.findings if found.verdict == "proves nothing"]
        parts += [_text((f"{_named(found, verdict)} proves nothing: {found.reason}", "yellow")) for found in void]
    return Group(*parts)


def _named(found: Finding, verdict: ClaimVerdict) -> str:
    return short_attack(found, verdict.findings)


def _in_short(result: AuditResult) -> RenderableType:
    """A row a claim: its verdict, and the attack that tells most."""
    table = _table(("", "claim or leak", "strongest attack", "gets"), (14, 30, 36, 34))
    for verdict in (*own_claims(result.verdicts), *leaks(result.verdicts)):
        best = telling(verdict.findings)
        table.add_row(
            _text((_word(spoken_of(verdict, result)), STYLES[verdict.verdict])),
            _text(title_of(verdict), (" (this plan's claim)" if verdict.claimed_by == OWN else "", "dim")),
            _text(_named(best, verdict) if best else "-"),
            _text(short_figure(best) if best else "-"),
        )
    return Constrain(table, WIDEST)


def _attacks(findings: Sequence[Finding]) -> RenderableType:
    table = _table(("verdict", "attack", "attacker gets", POSITIVE, NEGATIVE), (8, 24, 21, 21, 21))
    for name, found in zip(told_apart([found.evidence for found in findings]), findings, strict=True):
        for row in _rows(name, found):
            table.add_row(*row)
    return Constrain(table, WIDEST)


def _short_attacks(findings: Sequence[Finding]) -> RenderableType:
    table = _table(("", "attack", "attacker gets", "positive", "negative"), (14, 38, 28, 9, 9))
    for name, found in zip(told_apart([found.evidence for found in findings]), findings, strict=True):
        evidence, metric = found.evidence, shown_metrics(found)[-1]
        got = figure_of(evidence.target, metric)
        bound = f"; {claimed(evidence)}" if claimed(evidence) else ""
        table.add_row(
            _text((_word(spoken(found.verdict)), STYLES[found.verdict])),
            _text(name, (f" ({attacker(evidence)})", "dim")),
            _text(got, (f" {called(metric, got)}{bound}", "dim")),
            *(_text(mean_of(condition, metric)) for condition in (evidence.positive, evidence.negative)),
        )
    return Constrain(table, WIDEST)


def _table(titles: Sequence[str], widths: Sequence[int]) -> Table:
    """The first column, for verdicts, has its width; the others share what is left in these proportions."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.expand = True
    table.add_column(titles[0], width=widths[0])
    for title, ratio in zip(titles[1:], widths[1:], strict=True):
        table.add_column(title, ratio=ratio, min_width=8, no_wrap=False)
    return table


def _word(said: str) -> str:
    """A verdict that fits its column: what "holds" means stands in the summary."""
    return "nothing found" if said == spoken("holds") else said


def _rows(name: str, found: Finding) -> Iterator[tuple[Text, ...]]:
    """One a metric that is shown; the first says whose attack it is and what the controls were."""
    evidence = found.evidence
    head = (
        _text((_word(spoken(found.verdict)), STYLES[found.verdict])),
        _text(name, "\n", (attacker(evidence), "dim")),
    )
    bound = f"\n{claimed(evidence)}" if claimed(evidence) else ""
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
