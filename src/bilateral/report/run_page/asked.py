"""Of a model that answers questions: who asked how many, of how many, and who sees what."""

from __future__ import annotations

from bilateral.report.html import Html, el, joined
from bilateral.report.html import table as listed
from bilateral.report.run_page.charts import REST, Bar, bars
from bilateral.report.run_page.facts import RunFacts
from bilateral.report.run_page.numbers import number_card
from bilateral.report.run_page.tags import no


def questions_asked(facts: RunFacts) -> Html:
    """Each client's count beside its limit."""
    asked, limit = facts.result.get("questions") or {}, int(facts.result.get("limit") or 0)
    if not asked or not limit:
        return Html()
    left = [max(0, limit - int(count)) for count in asked.values()]
    cards = [
        number_card(f"{sum(map(int, asked.values())):,}", "questions asked, ever, by all clients"),
        number_card(f"{limit:,}", "allowed to each client, ever"),
        number_card(f"{min(left):,}", "left to the client that asked most"),
    ]
    rows = [
        Bar(name, {"asked": float(count), REST: float(max(0, limit - int(count)))}, f"{count:,} of {limit:,}")
        for name, count in asked.items()
    ]
    note = el("p", "A question is counted on disk before it is answered, whatever comes of it.", class_="note")
    picture = el("div", bars("Questions by client", rows), class_="card", style="margin-top:14px")
    return joined((el("div", cards, class_="grid"), picture, note))


def sight_of_answers(facts: RunFacts) -> Html:
    """Parties that follow the protocol and do not work together."""
    revealed = "its class" if facts.result.get("reveal") == "class" else "its logits"
    rows = [
        ("who asks", "its own", revealed, no(), "its own"),
        ("server", no(), no(), "its own", "yes"),
        ("dealer", no(), no(), no(), "yes"),
    ]
    head = ("", "a question", "the answer", "the model", "who asks how often")
    return listed(head, rows, caption="Parties that follow the protocol and do not work together")
