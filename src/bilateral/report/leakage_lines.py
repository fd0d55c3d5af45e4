"""The leakage page on the lines of the ledger: one table of all of them, then line by line.

Formal guarantees (tests/report/test_leakage_page.py): every line is in both, tested or not; a line that was broken in
any audit says so in both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bilateral.audit.auditor import NOT_ASKED, AuditResult
from bilateral.audit.ledger import LEDGER, LedgerLine
from bilateral.audit.verdict import ClaimVerdict, Finding, Word
from bilateral.report.audit_strength import beside, ranked, short_figure, strongest
from bilateral.report.audit_words import ORDER, says, spoken, spoken_of
from bilateral.report.leakage_attacks import all_attacks, best_attacks
from bilateral.report.leakage_markdown import Named, Pictures, Tried, gallery, link_to, table

_WORDS = (*(spoken(word) for word in ORDER[:-1]), NOT_ASKED, spoken("holds"))
"""What a verdict can read as, the worst first."""
_UNTRIED = (spoken("not tested"), NOT_ASKED)
_SHOWN_FIRST: tuple[Word, ...] = ("broken", "holds", "proves nothing", "not tested")


def lines_in_short(results: Sequence[Named]) -> str:
    """A row a line: the claim, what attackers get, the verdict, and what closes it."""
    rows = [_short_row(line, results) for line in LEDGER.values()]
    head = ("what leaks", "the papers say", "naive attacker gets", "adaptive attacker gets", "in", "verdict")
    return table((*head, "closed by"), rows)


def lines_tally(results: Sequence[Named]) -> str:
    """`Of 16 lines: 15 BROKEN, 1 not tested`: a line counts by the worst that any audit says of it."""
    said = [_said(line, results) or [spoken("not tested")] for line in LEDGER.values()]
    worst = [min(map(_WORDS.index, words)) for words in said]
    counts = [(worst.count(place), word) for place, word in enumerate(_WORDS)]
    return f"Of {len(LEDGER)} lines: {', '.join(f'{count} {word}' for count, word in counts if count)}"


def line_parts(line: LedgerLine, results: Sequence[Named], pictures: Pictures) -> list[str]:
    """One line: the claim, the strongest adaptive and naive attack, all others folded."""
    tried = [(name, found) for name, result in _shown_first(line, results) for found in _about(line, result)]
    parts = [
        f"### {_heading(line)}",
        f"- **Papers.** {_papers(line)}\n- **Closed by.** {line.closed_by}.\n"
        f"- **Verdict.** {_verdicts(line, results, whom=True)}.",
    ]
    if tried:
        first = [one for one in tried if one[0] == tried[0][0]]
        parts += [best_attacks(first), all_attacks(tried, f"line {line.number}")]
    return [*parts, *gallery(_ranked(tried), pictures)]


def _short_row(line: LedgerLine, results: Sequence[Named]) -> tuple[str, ...]:
    name, result = _shown_first(line, results)[0] if results else ("", None)
    findings = _about(line, result) if result else []
    adaptive = strongest(findings, adaptive=True)
    naive = beside(adaptive, findings)
    return (
        f"{link_to(_heading(line), f'Line {line.number}')}: {line.leak}",
        _without_brackets(_papers(line)),
        *(f"{one.evidence.attack}: {short_figure(one)}" if one else "not tried" for one in (naive, adaptive)),
        name if findings else "-",
        _verdicts(line, results, whom=False),
        line.closed_by,
    )


def _heading(line: LedgerLine) -> str:
    return f"Line {line.number}: {line.leak}"


def _papers(line: LedgerLine) -> str:
    return f"{line.paper} {says(line.paper)}: {line.said}." if line.paper else f"Nobody claims otherwise: {line.said}."


def _without_brackets(text: str) -> str:
    return re.sub(r" \([^)]*\)(?=[ ,.;:])", "", text)


def _shown_first(line: LedgerLine, results: Sequence[Named]) -> list[Named]:
    """The audits, the one whose figures tell most first: where it broke, then the default's, then the most thorough."""

    def place(one: Named) -> tuple[int, bool, int, str]:
        name, result = one
        return _rank(line, result), name != "default", -len(_about(line, result)), name

    return sorted(results, key=place)


def _said(line: LedgerLine, results: Sequence[Named]) -> list[str]:
    return [spoken_of(verdict, result) for _, result in results for verdict in _of(line, result)]


def _rank(line: LedgerLine, result: AuditResult) -> int:
    return min((_SHOWN_FIRST.index(verdict.verdict) for verdict in _of(line, result)), default=len(_SHOWN_FIRST))


def _of(line: LedgerLine, result: AuditResult) -> list[ClaimVerdict]:
    return [verdict for verdict in result.verdicts if verdict.tests == line.number]


def _about(line: LedgerLine, result: AuditResult) -> list[Finding]:
    found = [found for verdict in _of(line, result) for found in verdict.findings]
    return list({id(one.evidence): one for one in found}.values())


def _ranked(tried: Sequence[Tried]) -> list[Tried]:
    """By audit as they come, and within an audit the strongest attack first."""
    names = dict.fromkeys(name for name, _ in tried)
    return [(name, found) for name in names for found in ranked([found for other, found in tried if other == name])]


def _verdicts(line: LedgerLine, results: Sequence[Named], *, whom: bool) -> str:
    """`**BROKEN** for clients in default, sound; not tested in published`: the worst first, nothing left out.

    Without `whom` it is short: audits that tried nothing are left out if another one did.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, result in results:
        for verdict in _of(line, result):
            said = spoken_of(verdict, result)
            party = f" for {verdict.whom}" if whom and said not in _UNTRIED else ""
            names = groups.setdefault((said, party), [])
            if name not in names:
                names.append(name)
    tried = {key: names for key, names in groups.items() if key[0] not in _UNTRIED}
    shown = groups if whom or not tried else tried
    said_of = [
        f"{f'**{said}**' if said == spoken('broken') else said}{party} in {', '.join(names)}"
        for word in _WORDS
        for (said, party), names in shown.items()
        if said == word
    ]
    return "; ".join(said_of) or spoken("not tested")
