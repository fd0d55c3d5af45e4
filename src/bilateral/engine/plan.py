"""Plans: everything that decides a run, as Python objects and as TOML.

    plan = RunPlan(model=ModelPlan(name="lenet"), training=TrainingPlan(rounds=50))
    plan = load_plan("plan.toml")

Privacy settings (`protection`, `[perturbation]`, `[aggregation]`, `[noise]`) stand apart from everything else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    BaseModel,
    Field,
    PlainValidator,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler  # where pydantic 2.7 has it
from pydantic_core import PydanticKnownError, to_json

from bilateral.arguments import checked
from bilateral.engine.plan_comments import commented_toml
from bilateral.engine.plan_text import OtherKind, as_toml, read_plan, validated, with_settings
from bilateral.learning.client import num_participants
from bilateral.learning.evaluation import Measures
from bilateral.learning.local_steps import LocalSettings, ServerRule, ServerRuleSettings
from bilateral.learning.metrics import MetricName
from bilateral.learning.optimiser import OptimiserName, OptimiserSettings, ScheduleName
from bilateral.protections.chosen import Chosen
from bilateral.protections.groundwork import ROTATING
from bilateral.protections.ladder import Rung, rung_of
from bilateral.protections.registry import own_sections
from bilateral.protections.sections import AggregationPlan, NoisePlan, PerturbationPlan, ProtectionName, Section
from bilateral.protections.traits import MaskName, Traits
from bilateral.protocols.mask.settings import DEFAULT_RESOLUTION
from bilateral.protocols.mask.widths import WIDEST
from bilateral.protocols.objective import LossName
from bilateral.protocols.placement import DEVICE_PATTERN, Placement, Precision, device_named

DEFAULT_CLIENTS = 5
BASIC_METRICS: Final = ("loss", "accuracy", "balanced_accuracy", "exact_match", "mse", "r2")
"""What is always measured, where the task has it."""
ONLY_WITH_LOCAL_STEPS: Final = [
    ("proximal", 0.0),
    ("server_optimiser", "average"),
    ("server_learning_rate", None),
    ("server_momentum", 0.9),
]
NEUTRAL_TRAINING: Final = [
    ("precision", "full"),
    ("micro_batch", 0),
    ("class_weights", []),
    ("label_smoothing", 0.0),
    ("huber_delta", 1.0),
    ("local_steps", 0),
    ("local_epochs", 0),
    *ONLY_WITH_LOCAL_STEPS,
]
"""Settings that change nothing as they are by default."""
HETEROGENEOUS = OtherKind(
    "heterogeneous learning",
    frozenset({"clients", "queries", "retraining"}),
    "Use `bilateral hetero`, or `bilateral audit --hetero`; `bilateral run --write-plan FILE` makes a plan for this.",
)
"""A `HeteroPlan`, which is made of what is in this file."""


def _objective_name(value: Any) -> str:
    """One of ours, or a function of a user's own; nothing is imported."""
    known = ("auto", *get_args(LossName))
    if isinstance(value, str) and (value in known or ":" in value):
        return value
    expected = f"{', '.join(map(repr, known))} or 'package.module:function'"
    raise PydanticKnownError("literal_error", {"expected": expected})


ObjectiveName = Annotated[str, PlainValidator(_objective_name)]


class DataPlan(Section):
    """What is learned from. `name`: a known set, or `package.module:function` returning a `Dataset`.

    Without `sites` one dataset is dealt to the clients. With them (`[data.sites.NAME]`) every site loads its own, by
    `options` and its own ones on top, and trains on that set's train split; the server loads one with the options of
    `server` on top, and evaluates on its test split.
    """

    name: str = "digits"
    options: dict[str, Any] = Field(default_factory=dict)
    sites: dict[str, dict[str, Any]] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    workers: int = Field(default=0, ge=0, description="processes that load samples, where these are loaded as needed")


class ModelPlan(Section):
    """What is learned. `name`: a network of the zoo, or `package.module:function` returning an `nn.Module`."""

    name: str = "lenet"
    options: dict[str, Any] = Field(default_factory=dict)


class FederationPlan(Section):
    """Who takes part: `clients` (by default 5, or one a site), how data lie with them, who joins a round."""

    clients: int | None = Field(default=None, ge=1)
    partition: Literal["iid", "dirichlet", "site"] = "iid"
    alpha: float = Field(default=0.5, gt=0, description="Dirichlet concentration; small is unequal")
    proportions: list[float] | None = None
    participation: float = Field(default=1.0, gt=0, le=1)
    allow_single_class: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1, description="simulated: chance that a client dies in a round")
    timeout: float = Field(default=120.0, gt=0, description="seconds a site has for one answer, on many machines")
    min_sites: int | None = Field(
        default=None, ge=1, description="fewest sites a round starts with; by default what the aggregation needs"
    )
    patience: float = Field(default=600.0, ge=0, description="seconds to wait for that many sites")
    dealer: str = Field(
        default=ROTATING,
        min_length=1,
        description="who deals: a party without data, or rotating (clients do)",
    )

    def num_participants(self, num_clients: int) -> int:
        """How many of the clients join a round."""
        return num_participants(num_clients, self.participation)

    @property
    def num_clients(self) -> int | None:
        """None leaves the number to the sites."""
        return self.clients if self.clients is not None or self.partition == "site" else DEFAULT_CLIENTS


class TrainingPlan(Section):
    """How it is learned. `batch_size` 0: all samples.

    `loss`: mse, ce, bce (several labels a sample), huber, or a function of your own, `package.module:function`, of
    (outputs, targets); auto: ce for classification, mse for regression, bce for several labels. Class weights and
    smoothing, and all but mse and ce, are for protections that let clients compute a loss as it is.

    Each round a client gives one gradient, which the server's optimiser applies (FedSGD). With `local_steps` or
    `local_epochs` clients take that many steps on batches of their own, with this optimiser, and the server moves its
    model by their mean change (FedAvg): for `fedavg` and `masks`.
    """

    loss: ObjectiveName = "auto"
    class_weights: list[float] | Literal["balanced"] = Field(
        default_factory=list, description="of ce: of each class; of bce: of each output where its target is 1; balanced"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="of ce and bce")
    huber_delta: float = Field(default=1.0, gt=0, description="of huber: where squares end")
    rounds: int = Field(default=150, ge=1)
    batch_size: int = Field(default=32, ge=0)
    optimiser: OptimiserName = "sgd"
    learning_rate: float = Field(default=0.03, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: ScheduleName = "cosine"
    warmup_rounds: int = Field(default=0, ge=0)
    augment: bool = False
    local_steps: int = Field(default=0, ge=0, description="batches of a client a round; 0 with no epochs is FedSGD")
    local_epochs: int = Field(default=0, ge=0, description="times that a client goes through its data in a round")
    proximal: float = Field(default=0.0, ge=0, description="FedProx' mu: local steps are pulled to the round's model")
    server_optimiser: ServerRule = Field(
        default="average", description="with local steps: average, momentum (FedAvgM), adam (FedAdam), yogi (FedYogi)"
    )
    server_learning_rate: float | None = Field(default=None, gt=0, description="1, or 0.01 for adam and yogi")
    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    evaluate_every: int = Field(default=10, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    dtype: Literal["float32", "float64"] = "float32"
    memory_format: Literal["auto", "default", "channels_last"] = "auto"
    device: str = Field(
        default="cpu", pattern=DEVICE_PATTERN, description="auto, cpu, cuda, cuda:1 or mps; each machine has its own"
    )
    precision: Precision = Field(default="full", description="bf16: clients compute under autocast; parameters stay")
    micro_batch: int = Field(default=0, ge=0, description="samples of a batch at once; 0 is all, the same gradient")

    @field_validator("device", mode="before")
    @classmethod
    def _device_is_one(cls, device: Any) -> Any:
        if isinstance(device, str) and not re.match(DEVICE_PATTERN, device):
            raise ValueError("expected auto, cpu, cuda, cuda:1 (or another number) or mps")
        return device

    def placement(self) -> Placement:
        """Where and how clients of this machine compute. An error if it has no such device."""
        return Placement(device_named(self.device), self.precision, self.micro_batch)

    @property
    def channels_last(self) -> bool | None:
        """None leaves the choice to the client (`prefers_channels_last`)."""
        return None if self.memory_format == "auto" else self.memory_format == "channels_last"

    @property
    def takes_local_steps(self) -> bool:
        """FedAvg, and not FedSGD."""
        return bool(self.local_steps or self.local_epochs)

    @property
    def local_settings(self) -> LocalSettings | None:
        """How clients train by themselves; None is one gradient a round."""
        if not self.takes_local_steps:
            return None
        return LocalSettings(self.optimiser_settings(), self.rounds, self.local_steps, self.local_epochs, self.proximal)

    def server_rule(self) -> ServerRuleSettings:
        return ServerRuleSettings(self.server_optimiser, self.server_learning_rate, self.server_momentum)

    @model_validator(mode="after")
    def _local_settings_fit(self) -> TrainingPlan:
        if self.local_steps and self.local_epochs:
            raise ValueError("expected either `local_steps` or `local_epochs`")
        alone = {name: value for name, value in ONLY_WITH_LOCAL_STEPS if getattr(self, name) != value}
        if alone and not self.takes_local_steps:
            raise ValueError(f"expected `{min(alone)}` only beside `local_steps` or `local_epochs`")
        return self

    def optimiser_settings(self) -> OptimiserSettings:
        return OptimiserSettings(
            self.optimiser, self.learning_rate, self.momentum, self.weight_decay, self.schedule, self.warmup_rounds
        )


class EvaluationPlan(Section):
    """How good the model is, as the server measures it on its own data.

    `metrics`: any of auroc, auprc, f1, sensitivity, specificity, ece and brier, besides accuracy and loss; also of each
    class in the result. `threshold`: from which score on a class counts as found, for sensitivity and specificity.
    `validation`: this part of the server's test data is held out for choosing, and is in no reported test metric. With
    it the best model is kept, by `monitor` (a metric's name without its part), and with `patience_rounds` training
    ends when the metric has not become better for so many rounds. `site_holdout`: every site keeps back this part of
    its samples, and measures on them the models that it is sent; what it finds stays there (on one machine: in the
    run's folder, `sites/`; on FLARE: in the site's log). Only where sites are sent the model as it is. With
    `site_metrics = "share"` each site tells the server these figures as well, as they are and by its name.
    """

    metrics: list[MetricName] = Field(
        default_factory=list, description="auroc, auprc, f1, sensitivity, specificity, ece, brier"
    )
    threshold: float = Field(default=0.5, ge=0, le=1, description="score from which a class counts as found")
    validation: float = Field(default=0.0, ge=0, lt=1, description="part of the server's test data, to choose by")
    monitor: str = Field(default="loss", description="metric on the validation data that the best model is best by")
    patience_rounds: int = Field(default=0, ge=0, description="0: no early stopping")
    site_holdout: float = Field(default=0.0, ge=0, lt=1, description="part of its samples that a site measures on")
    site_metrics: Literal["stay", "share"] = Field(
        default="stay", description="what sites find there: stays with each of them, or is told to the server"
    )

    @property
    def shares_site_metrics(self) -> bool:
        return self.site_metrics == "share"

    @property
    def told_metrics(self) -> tuple[str, ...]:
        """What a site may tell, by name."""
        return tuple(f"site_{name}" for name in (*BASIC_METRICS, *self.metrics))

    @property
    def measures(self) -> Measures:
        return Measures(tuple(self.metrics), self.threshold)

    @model_validator(mode="after")
    def _goes_together(self) -> EvaluationPlan:
        if self.patience_rounds and not self.validation:
            raise ValueError(
                "`patience_rounds` chooses when to stop, which needs data that no result is reported on: set "
                "`validation`, to 0.3 for example"
            )
        if self.shares_site_metrics and not self.site_holdout:
            raise ValueError(
                '`site_metrics = "share"` tells what sites find on samples that they keep back: set `site_holdout`, '
                "to 0.2 for example"
            )
        known = (*BASIC_METRICS, *self.metrics)
        if self.monitor not in known:
            raise ValueError(f"`monitor` is {self.monitor!r}, expected one of {', '.join(known)}")
        return self


class RunPlan(Section):
    """Everything that decides a run. The same plan and seed give the same model, bit for bit, on one machine."""

    seed: int = Field(default=0, ge=0)
    protection: ProtectionName = "perturbation"
    data: DataPlan = DataPlan()
    model: ModelPlan = ModelPlan()
    federation: FederationPlan = FederationPlan()
    training: TrainingPlan = TrainingPlan()
    perturbation: PerturbationPlan = PerturbationPlan()
    aggregation: AggregationPlan = AggregationPlan()
    noise: NoisePlan = NoisePlan()
    evaluation: EvaluationPlan = EvaluationPlan()
    _own: dict[str, BaseModel] = PrivateAttr(default_factory=dict)

    def masks(self, num_clients: int) -> MaskName:
        """The masks of a run with so many clients: what `aggregation.masks` says, or what `auto` means here."""
        chosen = self.aggregation.masks
        if chosen != "auto":
            return chosen
        alone = self.federation.num_participants(num_clients) < 2
        return "none" if alone else self.traits.default_masks

    @property
    def rung(self) -> Rung | None:
        """Where it stands on the ladder of protections."""
        return rung_of(self.protection, self.masks(len(self.data.sites) or self.federation.num_clients or 2))

    @property
    def chosen(self) -> Chosen:
        """What `protection` and `noise.mechanism` stand for."""
        return Chosen.by(self)

    @property
    def named_dealer(self) -> str | None:
        """A party without data that deals for all; None where nobody deals, or clients do so for each other."""
        deals = self.traits.computes_on_shares or self.traits.sums_ciphertexts
        return self.federation.dealer if deals and self.federation.dealer != ROTATING else None

    def parties(self, names: Sequence[str]) -> tuple[str, ...]:
        """Everybody with keys of the run: these clients, and whom they need besides."""
        return (*names, self.named_dealer) if self.named_dealer is not None else tuple(names)

    @property
    def traits(self) -> Traits:
        """What all its protections together are like: ask this, and not their names."""
        return self.chosen.traits

    def own_settings(self, name: str) -> BaseModel:
        """The section of a protection's own (`Protection.settings`), or its defaults."""
        return self._own[name] if name in self._own else own_sections()[name]()

    @model_validator(mode="wrap")
    @classmethod
    def _with_own_sections(cls, values: Any, handler: ModelWrapValidatorHandler[RunPlan]) -> RunPlan:
        """Protections with settings of their own have a section under their name, which nothing else knows of."""
        known = {name: kind for name, kind in own_sections().items() if name not in cls.model_fields}
        if not isinstance(values, dict) or not known:
            return handler(values)
        plan = handler({name: value for name, value in values.items() if name not in known})
        fields: dict[str, Any] = {name: (known[name], ...) for name in values if name in known}
        plan._own = dict(create_model("OwnSections", **fields)(**{name: values[name] for name in fields}))
        return plan

    @model_serializer(mode="wrap")
    def _dump_own_sections(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        own = {
            name: section.model_dump(mode=info.mode, exclude_none=info.exclude_none)
            for name, section in self._own.items()
        }
        return {**handler(self), **own}

    @field_validator("seed")
    @classmethod
    def _seed_fits(cls, seed: int) -> int:
        if seed >= 2**63:
            raise ValueError("expected a seed below 2^63")
        return seed

    @model_validator(mode="after")
    def _sites_are_the_clients(self) -> RunPlan:
        sites, federation = self.data.sites, self.federation
        if self.data.server and not sites:
            raise ValueError("expected `data.server` only beside `data.sites`; use `data.options` for one dataset")
        if sites and federation.clients not in (None, len(sites)):
            raise ValueError(
                f"`federation.clients` is {federation.clients}, but `data.sites` names {len(sites)} sites; leave it out"
            )
        if sites and (federation.partition != "iid" or federation.proportions is not None):
            raise ValueError(
                "`federation.partition` and `federation.proportions` deal out one dataset, but with `data.sites` every "
                "site has its own; leave them out"
            )
        count = len(sites) or federation.num_clients
        if federation.min_sites is not None and count is not None:
            most = federation.num_participants(count)
            if federation.min_sites > most:
                raise ValueError(f"`federation.min_sites` is {federation.min_sites}, but a round has {most} clients")
        return self

    def fingerprint(self) -> str:
        """SHA-256 of the plan, in hex: what the operators of a deployment agree to.

        How long the server waits, and for how many, is left out: an operator may change that between two terms. So is
        the device that computes.
        """
        return fingerprint_of(self.model_dump(mode="json"))

    def digest(self) -> str:
        """The start of the fingerprint; checkpoints carry it so that they are not resumed under another plan."""
        return self.fingerprint()[:16]

    def with_settings(self, settings: dict[str, Any]) -> RunPlan:
        """A copy with dotted settings replaced: `{"training.rounds": 10, "seed": 1}`."""
        return with_settings(self, settings, optional=own_sections())


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """The fingerprint of a plan's values as `model_dump` gives them, before anything is known of them: ask it first.

    Values that are no plan have one too, which is nobody's. Settings that plans from before lack count only if they are
    other than before.
    """
    left_out: dict[str, Callable[[str, Any], bool]] = {
        "federation": lambda key, value: (
            key in ("timeout", "min_sites", "patience") or (key, value) == ("dealer", ROTATING)
        ),
        "training": lambda key, value: key == "device" or (key, value) in NEUTRAL_TRAINING,
        "evaluation": lambda key, value: (key, value) == ("site_metrics", "stay"),
        "data": lambda key, value: key == "workers" or (key in ("sites", "server") and not value),
        "aggregation": lambda key, value: (key, value) in (("width", WIDEST), ("resolution", DEFAULT_RESOLUTION)),
        "perturbation": lambda key, value: (key, value) in (("softmax", "blinded"), ("norm_inputs", "scaled")),
    }
    if values.get("evaluation") == EvaluationPlan().model_dump(mode="json"):
        values = {name: section for name, section in values.items() if name != "evaluation"}
    kept = {
        name: {k: v for k, v in section.items() if not left_out[name](k, v)}
        if name in left_out and isinstance(section, dict)
        else section
        for name, section in values.items()
    }
    return hashlib.sha256(to_json(kept, inf_nan_mode="null")).hexdigest()


def parse_plan(values: dict[str, Any], source: str) -> RunPlan:
    """Validate a plan, naming every setting that is wrong."""
    return validated(RunPlan, values, source)


@checked
def load_plan(path: str | Path) -> RunPlan:
    """Read a plan from a TOML file."""
    return read_plan(RunPlan, path, "bilateral run", HETEROGENEOUS)


def dump_plan(plan: RunPlan) -> str:
    """The plan as TOML."""
    return as_toml(plan)


def plan_with_comments(plan: RunPlan) -> str:
    """The plan as TOML for people: every setting, with a comment."""
    return commented_toml(plan)
