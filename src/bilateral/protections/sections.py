"""Privacy settings of a plan, section by section: `[perturbation]`, `[aggregation]` and `[noise]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticKnownError

from bilateral.errors import PlanError
from bilateral.models.builder import NormInputs
from bilateral.protections import registry
from bilateral.protocols.mask.settings import DEFAULT_RESOLUTION, GraphKind, MaskSettings
from bilateral.protocols.mask.widths import WIDEST, WidthSetting
from bilateral.protocols.objective import PLAIN_REMEDY
from bilateral.protocols.perturb.settings import Loss, Noise, PerturbationSettings, Softmax


class Section(BaseModel):
    """Of a plan: nothing that it does not know, nothing that is not finite, nothing that changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _protection_name(value: Any) -> str:
    """Plans may say `fedsgd`; what is stored and fingerprinted is `fedavg`, as ever."""
    name = registry.unaliased(value) if isinstance(value, str) else value
    return _one_of(registry.protection_names(), name)


def _mechanism_name(value: Any) -> str:
    return _one_of(registry.mechanism_names(), value)


def _one_of(names: tuple[str, ...], value: Any) -> str:
    if isinstance(value, str) and value in names:
        return value
    *others, last = map(repr, names)
    raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})


ProtectionName = Annotated[str, PlainValidator(_protection_name)]
MechanismName = Annotated[str, PlainValidator(_mechanism_name)]


class PerturbationPlan(Section):
    """Privacy settings of model perturbation; see `PerturbationSettings`."""

    noise: Noise = "activation"
    partitions: int = Field(default=1, ge=1)
    permute: bool = True
    scale_range: tuple[float, float] = (0.25, 4.0)
    noise_ratio: float = Field(default=1.0, gt=0)
    softmax: Softmax = "local"
    norm_inputs: NormInputs = "exact"

    def settings(self, loss: str) -> PerturbationSettings:
        known: Loss | None = "mse" if loss == "mse" else "ce" if loss == "ce" else None
        if known is None:
            raise PlanError(f"Perturbation is written for mse and ce, not for {loss!r}.", remedy=PLAIN_REMEDY)
        return PerturbationSettings(
            known,
            self.noise,
            self.partitions,
            self.permute,
            self.scale_range,
            self.noise_ratio,
            self.softmax,
            self.norm_inputs,
        )


class AggregationPlan(Section):
    """Privacy settings of the sum that the server sees; see `MaskSettings`.

    `masks` auto: ring under perturbation with two or more clients a round, none otherwise.
    `width`: bits of a value under ring masks (64, 48, 43, 40 or 32); auto: as few as sums need to be right to
    `resolution` of the largest value (a float32 is right to 6e-8 of itself). The first round has
    64: no range is known yet.
    """

    masks: Literal["auto", "ring", "float", "none"] = "auto"
    graph: GraphKind = "auto"
    neighbours: int | None = Field(default=None, ge=1)
    threshold: float = Field(default=2 / 3, gt=0.5, lt=1)
    float_scale: float = Field(default=1000.0, gt=0)
    width: WidthSetting = WIDEST
    resolution: float = Field(default=DEFAULT_RESOLUTION, gt=0, lt=1)

    def settings(self) -> MaskSettings:
        return MaskSettings(self.graph, self.neighbours, self.threshold, width=self.width, resolution=self.resolution)


class NoisePlan(Section):
    """Differential privacy. `sound` is ours; the others are P2's scheme and its ablations, as published.

    `epsilon` is the budget: of the whole run for `sound`; of one round, as P2 counts, for the others.
    `noise_multiplier` (sound only) may be given instead. `unit` is what the budget protects: one sample or one client.
    `clip` bounds a sample's (or a client's) upload; the published schemes only assume that bound on the true gradient.
    `colluders` clients may share what they know with the server, or with another client, without weakening the claim.
    """

    mechanism: MechanismName = registry.NO_NOISE
    epsilon: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    unit: Literal["sample", "client"] = "sample"
    clip: float = Field(default=1.0, gt=0)
    adaptive_clip: bool = False
    colluders: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_budget(self) -> NoisePlan:
        mechanism = registry.mechanism_named(self.mechanism)
        if mechanism is not None:
            mechanism.check(self)
        return self
