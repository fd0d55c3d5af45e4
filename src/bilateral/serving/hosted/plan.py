"""The plan of a service: who asks, who deals, how much of the model is shown and how often. Nothing of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, model_validator
from pydantic_core import to_json

from bilateral.engine.kind import SERVING
from bilateral.engine.plan_text import as_toml, validated
from bilateral.protections.sections import Section
from bilateral.protocols.share.serving.terms import Reveal

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
_PartyName = Annotated[str, Field(pattern=_NAME)]
_WAITS: Final = frozenset({"patience"})


class AnswersPlan(Section):
    """`questions`: of each client, ever, over all services of that run. `reveal`: the most that is told of an answer.

    (A section of its own: FLARE takes JSON without an object in an object for a reference to its settings.)
    """

    questions: Annotated[int, Field(ge=1, le=1 << 40)]
    reveal: Reveal = "logits"


class ServingPlan(Section):
    """`run`: the name of the run whose model answers, among those of the server.

    `seed`: of a simulation alone. `patience`: how long the service waits for its sites.
    """

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    clients: Annotated[tuple[_PartyName, ...], Field(min_length=1)]
    dealer: _PartyName
    answers: AnswersPlan
    seed: int = 0
    patience: Annotated[float, Field(gt=0)] = 600.0

    @model_validator(mode="after")
    def _check_names(self) -> ServingPlan:
        names = [name.casefold() for name in self.parties]
        if len(set(names)) != len(names):
            raise ValueError("clients and dealer need different names; the dealer is a third party and does not ask")
        return self

    @property
    def questions(self) -> int:
        return self.answers.questions

    @property
    def reveal(self) -> Reveal:
        return self.answers.reveal

    @property
    def parties(self) -> tuple[str, ...]:
        return (*self.clients, self.dealer)

    def names(self) -> dict[str, str]:
        """It names no code. (The run that is served may: that is for the server's operator.)"""
        return {}

    def fingerprint(self) -> str:
        """SHA-256, in hex: what the operators of a deployment agree to."""
        return fingerprint_of(self.model_dump(mode="json"))

    def digest(self) -> str:
        return self.fingerprint()[:16]


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """Of a plan's values, before anything is known of them. No plan of another kind has the same."""
    kept = {name: value for name, value in values.items() if name not in _WAITS}
    return hashlib.sha256(b"a plan of serving: " + to_json(kept, inf_nan_mode="null")).hexdigest()


def parse_serving_plan(values: dict[str, Any], source: str) -> ServingPlan:
    return validated(ServingPlan, values, source)


def dump_serving_plan(plan: ServingPlan) -> str:
    return f'kind = "{SERVING}"\n{as_toml(plan)}'
