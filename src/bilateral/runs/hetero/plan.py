"""Plans of heterogeneous runs: clients with different networks that teach each other, as Python objects and as TOML.

    plan = HeteroPlan(queries=QueryPlan(pool="cutmix", number=500))
    plan = load_hetero_plan("plan.toml")

The privacy settings are `answers` and `style`. Everything else decides what is learned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from bilateral.engine.kind import HETERO
from bilateral.engine.plan import ModelPlan
from bilateral.engine.plan_comments import commented_toml
from bilateral.engine.plan_text import OtherKind, as_toml, read_plan, validated, with_settings
from bilateral.learning.client import num_participants
from bilateral.learning.hetero.settings import (
    HeteroSettings,
    LocalTrainingSettings,
    Normalisation,
    PoolName,
    QuerySettings,
    RetrainingSettings,
    SelectionName,
)
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, STYLES, ComparisonStyle, StyleName

AnswersName = Literal["secure", "plain"]
ONE_MODEL = OtherKind(
    "clients that train one model together",
    frozenset({"model", "federation", "perturbation", "aggregation", "noise", "evaluation"}),
    "Use `bilateral run`, or `bilateral audit` without --hetero; `bilateral hetero --write-plan FILE` makes a plan for "
    "this.",
)
"""A `RunPlan`."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _GrownSection(_Section):
    """A section with settings that plans from before do not have: they are written only where they are not neutral."""

    neutral: ClassVar[Mapping[str, Any]] = {}

    @model_serializer(mode="wrap")
    def _dump_what_is_not_neutral(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        return {key: value for key, value in values.items() if key not in self.neutral or value != self.neutral[key]}


class HeteroDataPlan(_Section):
    """What is learned from, and how it lies with the clients.

    `samples_per_client` is an average: that many times the number of clients are drawn and dealt. 0 deals all.
    `shrink` averages blocks of so many pixels either way: smaller images, for quick experiments.
    """

    name: str = "digits"
    options: dict[str, Any] = Field(default_factory=dict)
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: float = Field(default=0.5, gt=0, description="Dirichlet concentration; small is unequal")
    samples_per_client: int = Field(default=40, ge=0)
    shrink: int = Field(default=1, ge=1)


class ClientsPlan(_Section):
    """Who takes part: client 1 has the first architecture, client 2 the second, and so on, again from the first."""

    number: int = Field(default=6, ge=2)
    architectures: list[ModelPlan] = Field(
        default_factory=lambda: [
            ModelPlan(name="mlp-3"),
            ModelPlan(name="lenet"),
            ModelPlan(name="convnet", options={"width": 16, "batch_norm": True}),
        ],
        min_length=1,
    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"client-{number}" for number in range(1, self.number + 1))

    def architecture(self, name: str) -> ModelPlan:
        return self.architectures[self.names.index(name) % len(self.architectures)]

    def label(self, name: str) -> str:
        """What reports call a client's architecture: its name, with the options where the name says too little."""
        chosen = self.architecture(name)
        if [other.name for other in self.architectures].count(chosen.name) == 1:
            return chosen.name
        return " ".join([chosen.name, *(f"{key}={value}" for key, value in chosen.options.items())])


class LocalTrainingPlan(_Section):
    """Stage 1, see `LocalTrainingSettings`. `augment` is for images: random crops and mirror images."""

    epochs: int = Field(default=60, ge=1)
    batch_size: int = Field(default=16, ge=2)
    learning_rate: float = Field(default=0.03, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    augment: bool = False


class QueryPlan(_GrownSection):
    """Stages 2 and 3, see `QuerySettings`. `fraction`: of the other clients, how many answer (P4's C)."""

    neutral: ClassVar[Mapping[str, Any]] = {"mixup_weight": None}

    pool: PoolName = "mixup"
    number: int = Field(default=200, ge=2)
    selection: SelectionName = "random"
    pool_factor: int = Field(default=3, ge=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    normalisation: Normalisation = "none"
    mixup_weight: float | None = Field(default=None, gt=0, lt=1)


class RetrainingPlan(_GrownSection):
    """Stage 4, see `RetrainingSettings`. Without `from_answers` it is a control: as long, and nothing from anybody."""

    neutral: ClassVar[Mapping[str, Any]] = {"from_answers": True}

    epochs: int = Field(default=30, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=32, ge=2)
    learning_rate: float = Field(default=2e-3, gt=0)
    temperature: float = Field(default=1.0, gt=0)
    private_weight: float = Field(default=1.0, ge=0)
    augment: bool = False
    from_answers: bool = True


class HeteroPlan(_Section):
    """Everything that decides a heterogeneous run. The same plan and seed give the same models on one machine.

    `style`: how secure answers compare numbers (`gates/styles`), and so who sees what of them. It is written only where
    it is not the default: all other plans are, to the byte, what they were before there was the setting.
    """

    seed: int = Field(default=0, ge=0, lt=2**63)
    answers: AnswersName = "secure"
    style: StyleName = "sealed"
    iterations: int = Field(default=1, ge=1)
    data: HeteroDataPlan = HeteroDataPlan()
    clients: ClientsPlan = ClientsPlan()
    training: LocalTrainingPlan = LocalTrainingPlan()
    queries: QueryPlan = QueryPlan()
    retraining: RetrainingPlan = RetrainingPlan()

    @model_validator(mode="after")
    def _sums_hide_single_answers(self) -> HeteroPlan:
        if self.answers == "secure" and self.num_answerers < 2:
            raise ValueError(
                f"{self.num_answerers} of {self.clients.number - 1} others would answer, and the sum of one answer is "
                "that answer; raise `clients.number` or `queries.fraction`, or set `answers` to plain"
            )
        if self.answers == "secure" and self.queries.normalisation == "softmax":
            raise ValueError(
                "`queries.normalisation` softmax needs every answer in the clear: use scale, or set `answers` to plain"
            )
        return self

    @model_serializer(mode="wrap")
    def _dump_style_if_it_is_another(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if values.get("style") == DEFAULT_STYLE.name:
            del values["style"]
        return values

    @property
    def comparisons(self) -> ComparisonStyle:
        """How answers compare numbers, where they are secure."""
        return STYLES[self.style]

    @property
    def num_answerers(self) -> int:
        """How many others answer a client."""
        return num_participants(self.clients.number - 1, self.queries.fraction)

    def settings(self) -> HeteroSettings:
        """What every client must know of the plan."""
        return HeteroSettings(
            LocalTrainingSettings(**self.training.model_dump()),
            QuerySettings(**self.queries.model_dump(exclude={"fraction"})),
            RetrainingSettings(**self.retraining.model_dump()),
        )

    def names(self) -> dict[str, str]:
        """What the plan names as data and models, by the option that does."""
        names = dict.fromkeys(one.name for one in self.clients.architectures)
        return {"data": self.data.name, "models": ",".join(names)}

    def digest(self) -> str:
        """Checkpoints carry it so that they are not resumed under another plan."""
        return _digest(self.model_dump_json())

    def training_digest(self) -> str:
        """Of what decides the models before any query: plans that share it can share those models."""
        return _digest(self.model_dump_json(include={"seed", "data", "clients", "training"}))

    def with_settings(self, settings: dict[str, Any]) -> HeteroPlan:
        """A copy with dotted settings replaced: `{"queries.number": 10, "seed": 1}`."""
        return with_settings(self, settings)


def parse_hetero_plan(values: dict[str, Any], source: str) -> HeteroPlan:
    """Validate a plan, naming every setting that is wrong."""
    return validated(HeteroPlan, values, source)


def load_hetero_plan(path: str | Path) -> HeteroPlan:
    """Read a plan from a TOML file."""
    return read_plan(HeteroPlan, path, "bilateral hetero", ONE_MODEL, HETERO)


_SAID: Final = {
    "seed": "decides the deal of the data, initial weights, queries and, in a simulation, secrets",
    "answers": "secure: nobody but who asks learns answers; plain: as a measure",
    "style": "how secure answers compare numbers, and so who sees what of them",
    "iterations": "of asking and learning from answers",
    "data.name": "a known set, or package.module:function that returns a Dataset",
    "data.options": "what the loader is called with",
    "data.partition": "how the set is dealt to the clients",
    "data.samples_per_client": "0: all",
    "data.shrink": "pictures are made smaller by so much",
    "clients.number": "client 1 has the first architecture, and so on, again from the first",
    "clients.architectures": "networks of the zoo, or package.module:function",
    "training.epochs": "of a client alone, before it asks",
    "training.augment": "whether pictures are shifted and mirrored",
    "training.batch_size": "samples of a step",
    "training.weight_decay": "of sgd",
    "training.learning_rate": "of sgd",
    "training.momentum": "of sgd",
    "queries.pool": "what queries are made of",
    "queries.number": "of a client in an iteration",
    "queries.selection": "which of the pool are asked",
    "queries.pool_factor": "the pool has so many times as many",
    "queries.fraction": "of the other clients: how many answer",
    "queries.normalisation": "of logits, before they are added",
    "queries.mixup_weight": "of the first sample of every mixup, if it is not drawn",
    "retraining.epochs": "on the answers and the own samples",
    "retraining.max_steps": "fewer steps than that many epochs have",
    "retraining.batch_size": "samples of a step",
    "retraining.learning_rate": "of adam",
    "retraining.temperature": "of the softmax of answers",
    "retraining.private_weight": "of the own samples, beside the answers",
    "retraining.augment": "whether pictures are shifted and mirrored",
    "retraining.from_answers": "false: a control that learns as long from its own samples alone",
}


def hetero_plan_with_comments(plan: HeteroPlan) -> str:
    """The plan as TOML for people: every setting, with a comment."""
    return f'kind = "{HETERO}"\n{commented_toml(plan, _SAID)}'


def dump_hetero_plan(plan: HeteroPlan) -> str:
    """The plan as TOML."""
    return f'kind = "{HETERO}"\n{as_toml(plan)}'


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
