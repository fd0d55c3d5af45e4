"""Who sees what, as a table of parties and things: read off the run's guarantee."""

from __future__ import annotations

from bilateral.engine.kind import ROUNDS
from bilateral.report.html import Child, Html, table
from bilateral.report.run_page.facts import RunFacts
from bilateral.report.run_page.tags import no

_HEAD = ("", "a site's records", "one site's upload", "the sum of a round", "the model")


def who_sees_what(facts: RunFacts) -> Html:
    """Of parties that follow the protocol and keep to themselves; empty for kinds of run where it is not so simple."""
    if facts.kind != ROUNDS or not facts.guarantee:
        return Html()
    subjects = {claim["subject"] for claim in facts.guarantee.get("claims", ())}
    lines = {(leak["ledger_line"], leak["whom"]) for leak in facts.guarantee.get("leaks", ())}
    sealed = "sealed model" in subjects
    disguised = any(line in (1, 15) and whom.startswith("clients") for line, whom in lines)
    noisy = "differential privacy" in subjects
    model: Child = no() if sealed else "in disguise" if disguised else "yes"
    sums = no() if sealed else "from one model to the next"
    one = no() if "single uploads" in subjects else "yes"
    of_server = no() if "single uploads" in subjects else "not sent; may be read from uploads"
    rows: list[tuple[Child, ...]] = [
        ("the site itself", "its own", "its own", sums, model),
        ("other sites", no(), no(), sums, model),
        ("server", of_server, one, "yes, with noise" if noisy else "yes", "yes, it is the server's"),
    ]
    if sealed:
        rows.append(("dealer", no(), no(), no(), no()))
    return table(_HEAD, rows, caption="Parties that follow the protocol and do not work together")
