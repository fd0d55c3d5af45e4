"""What attackers got from the plan of a run, if it was audited; or how to have it tried."""

from __future__ import annotations

from bilateral.engine.kind import SERVING
from bilateral.report.audit_words import CAVEAT, leaks, own_claims, tally
from bilateral.report.findings import claim_block
from bilateral.report.html import Html, el, joined
from bilateral.report.run_page.facts import RunFacts


def can_be_audited(facts: RunFacts) -> bool:
    """Whether there are attacks on runs of this kind."""
    return facts.kind != SERVING


def attacks(facts: RunFacts) -> Html:
    """The audit's findings, claim by claim; or how to have one."""
    if facts.audit is None and not can_be_audited(facts):
        return el("p", "No attack on a service is among those of ", el("code", "bilateral audit"), ".")
    if facts.audit is None:
        command = el("code", f"bilateral audit {facts.directory / 'plan.toml'}")
        how = (
            " attacks its plan from the place of each party; with that folder, ",
            el("code", "bilateral report --audit"),
        )
        return el("p", "This run was not audited. ", command, how, " shows here what attackers got.")
    result, pictures = facts.audit, facts.audit_pictures
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    said = [el("li", "Claims of the plan: ", tally(own, result)), el("li", "Admitted leaks: ", tally(admitted, result))]
    note = el("p", facts.audit_note, class_="alarm") if facts.audit_note else None
    blocks = [claim_block(verdict, result, pictures, own=True) for verdict in own]
    blocks += [claim_block(verdict, result, pictures, own=False) for verdict in admitted]
    return joined((note, el("ul", said), el("p", CAVEAT, class_="note"), blocks))
