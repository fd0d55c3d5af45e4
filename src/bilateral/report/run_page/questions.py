"""The questions of whoever answers for the data, with an answer each from the run's guarantee and its audit.

Tones look different: `held` (the plan claims it, and nothing that was tried broke it), `admitted` (the plan says itself
that it does not hide this), `broken` (the plan claims it, and an attack did it), `open` (nothing is settled).

Formal guarantee (tests/report/test_questions.py): no answer is `held` unless the run's own guarantee has a claim about
it; none is `held` where the audit of this plan broke that claim; none says that attacks found nothing without an audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bilateral.audit.verdict import OWN, ClaimVerdict
from bilateral.engine.kind import HETERO, SERVING
from bilateral.protections.ladder import rung_of
from bilateral.report.run_page.facts import RunFacts

Tone = Literal["held", "admitted", "broken", "open"]
_FUNCTION_LINES = (1, 15)
_PLAIN_LINE = 0
_SINGLE_LINES = (0, 3, 4, 6)
_CIPHER_LINE = 19


@dataclass(frozen=True)
class Answer:
    """`short` goes on the tag, `text` below it; `rests_on`: what must be so."""

    question: str
    tone: Tone
    short: str
    text: str
    rests_on: str = ""


def answers(facts: RunFacts) -> tuple[Answer, ...]:
    """Of a run, with the audit of its very plan if there is one."""
    audited = facts.audit is not None and not facts.audit_note
    verdicts = facts.audit.verdicts if facts.audit is not None and audited else ()
    return answers_to(
        facts.kind,
        facts.guarantee,
        facts.privacy,
        facts.settings,
        verdicts,
        "" if facts.kind == SERVING else "This run was not audited.",
    )


def answers_to(
    kind: str,
    guarantee: Mapping[str, Any],
    privacy: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    verdicts: Sequence[ClaimVerdict] = (),
    unaudited: str = "",
) -> tuple[Answer, ...]:
    """What a plan of this kind with this guarantee answers. `unaudited`: said of a claim without an audit."""
    asked = _Guarantee(guarantee, privacy, verdicts, unaudited)
    if kind == HETERO:
        return tuple(_of_sharing(asked))
    if kind == SERVING:
        return tuple(_of_serving(asked))
    return (_model(asked), _records(asked), _presence(asked), _together(settings, asked))


class _Guarantee:
    """A plan's guarantee, and what the audit of this very plan made of it."""

    def __init__(
        self,
        guarantee: Mapping[str, Any],
        privacy: Mapping[str, Any] | None,
        verdicts: Sequence[ClaimVerdict],
        unaudited: str,
    ) -> None:
        self._claims: Sequence[dict[str, Any]] = guarantee.get("claims", ())
        self._leaks: Sequence[dict[str, Any]] = guarantee.get("leaks", ())
        self._verdicts = verdicts
        self._unaudited = unaudited
        self.privacy = privacy

    def claim(self, *subjects: str) -> dict[str, Any] | None:
        return next((claim for claim in self._claims if claim["subject"] in subjects), None)

    def leaks(self, lines: Sequence[int], whom: str = "") -> list[dict[str, Any]]:
        return [leak for leak in self._leaks if leak["ledger_line"] in lines and whom in leak["whom"]]

    def pairs(self) -> list[dict[str, Any]]:
        """What parties learn who tell each other what they know."""
        return [leak for leak in self._leaks if " and " in leak["whom"] and "tell each other" in leak["what"]]

    def answer(self, question: str, claim: dict[str, Any], short: str, text: str) -> Answer:
        """Of something that is claimed: as the audit found it, if there was one."""
        own = [one for one in self._verdicts if one.tests == claim["subject"] and one.claimed_by == OWN]
        if any(one.verdict == "broken" for one in own):
            return Answer(question, "broken", "yes: an attack did it", f"This plan claims otherwise. {_reasons(own)}")
        rests_on = claim["assumption"]
        if own and all(one.verdict == "holds" for one in own):
            count = sum(len(one.findings) for one in own)
            found = f"{count} attack{'s' if count != 1 else ''} with controls found nothing; that is no proof."
            return Answer(question, "held", short, f"{text} {found}", rests_on)
        if own:
            text = f"{text} The audit does not settle it: {_reasons(own)}"
            return Answer(question, "open", f"claimed: {short}", text, rests_on)
        return Answer(question, "held", f"claimed: {short}", f"{text} {self._unaudited}".strip(), rests_on)


def _reasons(verdicts: Sequence[ClaimVerdict]) -> str:
    return "; ".join(dict.fromkeys(one.reason for one in verdicts if one.verdict != "holds")) + "."


def _model(asked: _Guarantee) -> Answer:
    question = "Can a site copy the model?"
    claim = asked.claim("sealed model")
    if claim is not None:
        return asked.answer(
            question,
            claim,
            "no, it sees random numbers",
            "It computes on shares of the model, which are uniform to it.",
        )
    if asked.leaks(_FUNCTION_LINES, "clients"):
        text = (
            "It gets the model in disguise. Taken as it comes, its outputs mislead; a site that tries undoes the "
            "disguise, and has what the model computes, and its weights to some percent (ledger, lines 1 and 15). "
            "With --protection sealed the model is hidden from sites."
        )
        return Answer(question, "admitted", "yes, if it tries", text)
    if asked.leaks((_PLAIN_LINE,), "clients"):
        text = "Every site trains on the model as it is. With --protection sealed it is hidden from sites."
        return Answer(question, "admitted", "yes: it is sent the model", text)
    return Answer(
        question, "open", "nothing is claimed", "This protection says nothing about what sites learn of the model."
    )


def _records(asked: _Guarantee) -> Answer:
    question = "Can the server see a person's record?"
    claim = asked.claim("sealed batch") or asked.claim("single uploads")
    if claim is not None:
        text = (
            "It learns sums over several sites and nothing of one. A sum over few samples says something about them, "
            "and a server that crafts the model for it reads samples out of sums (ledger, lines 12 and 18)."
        )
        if asked.leaks((_CIPHER_LINE,)):
            text += " One that asks for another opening reads single uploads (line 19)."
        if asked.claim("sealed model") is not None:
            text += " One that sends sites different models reads one site's gradient."
        if asked.claim("differential privacy") is not None:
            text = "It learns sums over several sites and nothing of one; noise bounds what a sum says of anybody."
        return asked.answer(question, claim, "no site's upload: it sees sums", text)
    if asked.claim("differential privacy") is not None:
        return Answer(question, "open", "bounded by noise", "Uploads carry noise, and nothing hides them otherwise.")
    if asked.leaks(_SINGLE_LINES, "server"):
        text = "It sees each site's upload by itself, and images have been read from such uploads. Masks close this."
        return Answer(question, "admitted", "yes, from single uploads", text)
    if asked.leaks((_CIPHER_LINE,), "server"):
        text = (
            "It reads single uploads out of what it is sent (ledger, line 19), and images have been read from uploads."
        )
        return Answer(question, "admitted", "yes, from single uploads", text)
    return Answer(question, "open", "nothing is claimed", "This protection says nothing about single uploads.")


def _presence(asked: _Guarantee) -> Answer:
    question = "Can somebody tell that a person took part?"
    rows = (asked.privacy or {}).get("rows", ())
    claim = asked.claim("differential privacy")
    if claim is not None and rows:
        epsilon, delta = rows[0]["epsilon"], rows[0]["delta"]
        unit = (asked.privacy or {}).get("unit", "sample")
        text = f"Whoever sees all sums and the model: epsilon {epsilon:.3g} at delta {delta:g}, for one {unit}."
        return asked.answer(question, claim, f"bounded: epsilon {epsilon:.3g}", text)
    if claim is not None:
        return asked.answer(question, claim, "bounded by noise", f"{claim['what']}.")
    if asked.claim("published differential privacy") is not None:
        text = "The noise is the paper's; its claim does not hold against a server that knows its own factors (line 4)."
        return Answer(question, "admitted", "yes, for the server", text)
    text = "No noise bounds the whole run. Whoever has the model, or answers of it, can try. "
    if asked.claim("sealed model") is not None:
        text += "Noise does not go with sealed training; with --protection masks, --epsilon 8 bounds it."
    else:
        text += "Noise bounds it: --epsilon 8."
    return Answer(question, "admitted", "not prevented", text)


def _together(settings: Mapping[str, Any], asked: _Guarantee) -> Answer:
    question = "Who must not work together?"
    pairs = asked.pairs()
    if pairs:
        said = "; ".join(f"{leak['whom']}: {leak['what'].split(',')[0]}" for leak in pairs)
        dealer = settings.get("federation", {}).get("dealer")
        who = f" The dealer here: {dealer}." if dealer and dealer != "rotating" else ""
        return Answer(
            question, "admitted", "a site, or the server, and a dealer", f"{said[:1].upper()}{said[1:]}.{who}"
        )
    alone = [leak for leak in asked.leaks((_CIPHER_LINE,)) if "server with" in leak["whom"]]
    if alone:
        said = "; ".join(dict.fromkeys(f"{leak['whom']}: {leak['what']}" for leak in alone))
        return Answer(question, "admitted", "the server and who has the key", f"{said[:1].upper()}{said[1:]}.")
    claim = asked.claim("single uploads")
    if claim is not None:
        text = "Sites that tell the server what they know help it to single uploads; how many may, is below."
        return Answer(question, "admitted", "the server and several sites", text, claim["assumption"])
    rung = rung_of(settings.get("protection", ""), "none")
    text = "Nothing here rests on parties that keep apart" + (f": {rung.together}." if rung else ".")
    return Answer(question, "admitted", "nobody has to", text)


def _of_sharing(asked: _Guarantee) -> Iterator[Answer]:
    """Sites with different networks, which answer each other's questions."""
    question = "Can a site, or the server, see what another site asks?"
    claim = asked.claim("shared prediction, answering party") or asked.claim("shared prediction, server")
    if claim is not None:
        yield asked.answer(question, claim, "no, it works on shares", f"Hidden: {claim['what']}.")
    else:
        yield Answer(question, "admitted", "yes, as it is", "Answers in the clear are for speed, not for privacy.")
    question = "Can a site see what one other site answers?"
    claim = asked.claim("single answers")
    if claim is not None:
        yield asked.answer(question, claim, "it learns sums of answers", f"Hidden: {claim['what']}.")
    else:
        text = "Nothing is claimed about single answers with these comparisons (ledger, line 5)."
        yield Answer(question, "admitted", "partly", text)
    text = "It may ask often, and learn what the others compute together from the answers (ledger, line 14)."
    yield Answer("Can a site copy the others' models?", "admitted", "together, by asking much", text)
    text = (
        "Queries are made of its owner's samples, and answers come from networks that were trained on others'. No "
        "noise bounds what they tell."
    )
    yield Answer("Can somebody tell that a person took part?", "admitted", "not prevented", text)
    if claim is not None:
        text = "The site that asks, the one that answers and the server: any two of them that tell each other all."
        yield Answer("Who must not work together?", "admitted", "any two of three", text, claim["assumption"])
    text = "Networks' shapes, who asks whom and how often, are open to all (ledger, line 13)."
    yield Answer("What does everybody see?", "admitted", "shapes and counts", text)


def _of_serving(asked: _Guarantee) -> Iterator[Answer]:
    """Clients that ask a model which they do not have."""
    question = "Can the server see what a client asks?"
    claim = asked.claim("sealed batch")
    if claim is not None:
        yield asked.answer(question, claim, "no, it sees random numbers", f"Hidden: {claim['what']}.")
    else:
        yield Answer(question, "open", "nothing is claimed", "This service says nothing about questions.")
    question = "Can a client see the model?"
    claim = asked.claim("sealed model")
    if claim is not None:
        yield asked.answer(question, claim, "it learns answers", f"Hidden: {claim['what']}.")
    else:
        yield Answer(question, "open", "nothing is claimed", "This service says nothing about the model.")
    copies = [leak["what"] for leak in asked.leaks((14,))]
    if copies:
        text = f"{'. '.join(one[:1].upper() + one[1:] for one in copies)}."
        yield Answer("Can a client copy the model?", "admitted", "slowly: by asking much", text)
    pairs = asked.pairs()
    if pairs:
        said = "; ".join(f"{leak['whom']}: {leak['what'].split(',')[0]}" for leak in pairs)
        text = f"{said[:1].upper()}{said[1:]}."
        yield Answer("Who must not work together?", "admitted", "the dealer, and either side", text)
    copied = [leak for leak in asked.leaks((17,)) if "kits" in leak["whom"]]
    if copied:
        text = f"{copied[0]['what'][:1].upper()}{copied[0]['what'][1:]}."
        yield Answer("What if the kits were copied?", "admitted", "questions are open then", text)
