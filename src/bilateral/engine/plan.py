"""Plans: everything that decides a run, as Python objects and as TOML.

    plan = RunPlan(model=ModelPlan(name="lenet"), training=TrainingPlan(rounds=50))
    plan = load_plan("plan.toml")

Privacy settings (`protection`, `[perturbation]`, `[aggregation]`, `[noise]`) stand apart from everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import to_json

from bilateral.arguments import checked
from bilateral.engine.plan_text import OtherKind, as_toml, read_plan, validated, with_settings
from bilateral.learning.client import num_participants
from bilateral.learning.optimiser import OptimiserName, OptimiserSettings, ScheduleName
from bilateral.models.builder import NormInputs
from bilateral.protocols.mask.settings import GraphKind, MaskSettings
from bilateral.protocols.perturb.settings import Loss, Noise, PerturbationSettings, Softmax

DEFAULT_CLIENTS = 5
HETEROGENEOUS = OtherKind(
    "heterogeneous learning",
    frozenset({"clients", "queries", "retraining"}),
    "Use `bilateral hetero`, or `bilateral audit --hetero`; `bilateral run --write-plan FILE` makes a plan for this.",
)
"""A `HeteroPlan`, which is made of what is in this file."""
ProtectionName = Literal["perturbation", "fedavg"]
MaskName = Literal["ring", "float", "none"]
MechanismName = Literal["none", "sound", "published", "mp-cdp", "mp-dp-naive"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataPlan(_Section):
    """What is learned from. `name`: a known set, or `package.module:function` returning a `Dataset`.

    Without `sites` one dataset is dealt to the clients. With them (`[data.sites.NAME]`) every site loads its own, by
    `options` and its own ones on top, and trains on that set's train split; the server loads one with the options of
    `server` on top, and evaluates on its test split.
    """

    name: str = "digits"
    options: dict[str, Any] = Field(default_factory=dict)
    sites: dict[str, dict[str, Any]] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)


class ModelPlan(_Section):
    """What is learned. `name`: a network of the zoo, or `package.module:function` returning an `nn.Module`."""

    name: str = "lenet"
    options: dict[str, Any] = Field(default_factory=dict)


class FederationPlan(_Section):
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

    def num_participants(self, num_clients: int) -> int:
        """How many of the clients join a round."""
        return num_participants(num_clients, self.participation)

    @property
    def num_clients(self) -> int | None:
        """None leaves the number to the sites."""
        return self.clients if self.clients is not None or self.partition == "site" else DEFAULT_CLIENTS


class TrainingPlan(_Section):
    """How it is learned. `loss` auto: ce for classification, mse for regression. `batch_size` 0: all samples."""

    loss: Literal["auto", "mse", "ce"] = "auto"
    rounds: int = Field(default=150, ge=1)
    batch_size: int = Field(default=32, ge=0)
    optimiser: OptimiserName = "sgd"
    learning_rate: float = Field(default=0.03, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: ScheduleName = "cosine"
    warmup_rounds: int = Field(default=0, ge=0)
    augment: bool = False
    evaluate_every: int = Field(default=10, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    dtype: Literal["float32", "float64"] = "float32"
    memory_format: Literal["auto", "default", "channels_last"] = "auto"

    @property
    def channels_last(self) -> bool | None:
        """None leaves the choice to the client (`prefers_channels_last`)."""
        return None if self.memory_format == "auto" else self.memory_format == "channels_last"

    def optimiser_settings(self) -> OptimiserSettings:
        return OptimiserSettings(
            self.optimiser, self.learning_rate, self.momentum, self.weight_decay, self.schedule, self.warmup_rounds
        )


class PerturbationPlan(_Section):
    """Privacy settings of model perturbation; see `PerturbationSettings`."""

    noise: Noise = "activation"
    partitions: int = Field(default=1, ge=1)
    permute: bool = True
    scale_range: tuple[float, float] = (0.25, 4.0)
    noise_ratio: float = Field(default=1.0, gt=0)
    softmax: Softmax = "local"
    norm_inputs: NormInputs = "exact"

    def settings(self, loss: Loss) -> PerturbationSettings:
        return PerturbationSettings(
            loss,
            self.noise,
            self.partitions,
            self.permute,
            self.scale_range,
            self.noise_ratio,
            self.softmax,
            self.norm_inputs,
        )


class AggregationPlan(_Section):
    """Privacy settings of the sum that the server sees; see `MaskSettings`.

    `masks` auto: ring under perturbation with two or more clients a round, none otherwise.
    """

    masks: Literal["auto", "ring", "float", "none"] = "auto"
    graph: GraphKind = "auto"
    neighbours: int | None = Field(default=None, ge=1)
    threshold: float = Field(default=2 / 3, gt=0.5, lt=1)
    float_scale: float = Field(default=1000.0, gt=0)

    def settings(self) -> MaskSettings:
        return MaskSettings(self.graph, self.neighbours, self.threshold)


class NoisePlan(_Section):
    """Differential privacy. `sound` is ours; the others are P2's scheme and its ablations, as published.

    `epsilon` is the budget: of the whole run for `sound`; of one round, as P2 counts, for the others.
    `noise_multiplier` (sound only) may be given instead. `unit` is what the budget protects: one sample or one client.
    `clip` bounds a sample's (or a client's) upload; the published schemes only assume that bound on the true gradient.
    `colluders` clients may share what they know with the server, or with another client, without weakening the claim.
    """

    mechanism: MechanismName = "none"
    epsilon: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    unit: Literal["sample", "client"] = "sample"
    clip: float = Field(default=1.0, gt=0)
    adaptive_clip: bool = False
    colluders: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_budget(self) -> NoisePlan:
        if self.mechanism == "none":
            return self
        given = (self.epsilon is not None) + (self.noise_multiplier is not None)
        if self.mechanism == "sound" and given != 1:
            raise ValueError("expected either `epsilon` or `noise_multiplier`")
        if self.mechanism != "sound" and (self.epsilon is None or self.noise_multiplier is not None):
            raise ValueError(f"expected `epsilon` (and no `noise_multiplier`) with mechanism {self.mechanism!r}")
        if self.mechanism != "sound" and (self.adaptive_clip or self.colluders):
            raise ValueError("`adaptive_clip` and `colluders` belong to mechanism 'sound'")
        return self


class RunPlan(_Section):
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

    def masks(self, num_clients: int) -> MaskName:
        """The masks of a run with so many clients: what `aggregation.masks` says, or what `auto` means here."""
        chosen = self.aggregation.masks
        if chosen != "auto":
            return chosen
        pairwise = self.noise.mechanism in ("published", "mp-dp-naive", "mp-cdp")
        wanted = self.protection == "perturbation" or self.noise.mechanism == "sound"
        return "ring" if wanted and not pairwise and self.federation.num_participants(num_clients) > 1 else "none"

    @field_validator("protection", mode="before")
    @classmethod
    def _one_name(cls, protection: Any) -> Any:
        """Plans may say `fedsgd`, which it is; what is stored and fingerprinted is `fedavg`, as ever."""
        return "fedavg" if protection == "fedsgd" else protection

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

        How long the server waits, and for how many, is left out: an operator may change that between two terms.
        """
        return fingerprint_of(self.model_dump(mode="json"))

    def digest(self) -> str:
        """The start of the fingerprint; checkpoints carry it so that they are not resumed under another plan."""
        return self.fingerprint()[:16]

    def with_settings(self, settings: dict[str, Any]) -> RunPlan:
        """A copy with dotted settings replaced: `{"training.rounds": 10, "seed": 1}`."""
        return with_settings(self, settings)


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """The fingerprint of a plan's values as `model_dump` gives them, before anything is known of them: ask it first.

    Values that are no plan have one too, which is nobody's. Settings that plans from before lack count only if they are
    other than before.
    """
    left_out: dict[str, Callable[[str, Any], bool]] = {
        "federation": lambda key, _: key in ("timeout", "min_sites", "patience"),
        "data": lambda key, value: key in ("sites", "server") and not value,
        "perturbation": lambda key, value: (key, value) in (("softmax", "blinded"), ("norm_inputs", "scaled")),
    }
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
