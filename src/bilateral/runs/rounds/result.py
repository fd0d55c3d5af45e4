"""What there is to tell of a run: after every round, and at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import nn

from bilateral.engine.plan import RunPlan
from bilateral.engine.transcript import Transcript
from bilateral.learning.aggregation import Incident
from bilateral.learning.evaluation import main_metric
from bilateral.models.coverage import Coverage
from bilateral.models.drawing import DrawnLayer
from bilateral.protections.registry import LOCAL_STEPS, spoken
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.perturb.recovery_trial import RecoveryReport
from bilateral.runs.rounds.seen_by_clients import SeenByClients

FEDSGD: Final = "FedSGD"
OF_SITE: Final = " told by "
"""Between a metric and the site that told it, in the rows of a run."""


def yardstick_of(plan: RunPlan) -> str:
    """What a run without any protection is called: FedSGD, or with local steps what spends as few rounds."""
    return spoken(LOCAL_STEPS) if plan.training.takes_local_steps else FEDSGD


def told_by_sites(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What each site told last of a model, from the rows of a run."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        told = [(*key.split(OF_SITE, 1), value) for key, value in row.items() if OF_SITE in key]
        for _, site, _ in told:
            found[site] = {"round": row["round"]}
        for metric, site, value in told:
            found[site][metric] = value
    return found


@dataclass(frozen=True)
class FailedRound:
    """A round that could not be unmasked; it changed nothing."""

    round_index: int
    reason: str


@dataclass(frozen=True)
class RoundReport:
    """What there is to tell after a round."""

    round_index: int
    num_rounds: int
    latest: dict[str, float]
    """Metrics of the last evaluation, which may be some rounds ago."""
    difference_to_fedavg: float | None
    num_failed: int = 0
    evaluated: int | None = None
    """After how many rounds that was."""
    yardstick: str = FEDSGD

    @property
    def metrics(self) -> dict[str, float]:
        """Of an evaluation after this round; empty if there was none."""
        return self.latest if self.evaluated == self.round_index else {}

    @property
    def num_done(self) -> int:
        return self.round_index

    @property
    def num_steps(self) -> int:
        return self.num_rounds

    def __str__(self) -> str:
        metric, value = main_metric(self.latest)
        difference = self.difference_to_fedavg
        failed = f"  {self.num_failed} failed" if self.num_failed else ""
        return (
            f"{metric} {value:.4f}"
            + ("" if difference is None else f"  diff to {self.yardstick} {difference:.1e}")
            + failed
        )


@dataclass(frozen=True)
class RunResult:
    """A finished (or interrupted) run."""

    plan: RunPlan
    model: nn.Module
    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    rounds: int
    seconds: float
    transcript: Transcript
    difference_to_fedavg: float | None
    """Largest relative difference of the weights to FedSGD's, over all rounds."""
    final_difference_to_fedavg: float | None
    metrics_of_fedavg: dict[str, float] | None
    view: SeenByClients | None
    guarantee: Guarantee
    privacy: PrivacyReport | None
    """What was spent, if the plan adds noise."""
    failed: tuple[FailedRound, ...]
    """Rounds that had too few clients."""
    incidents: tuple[Incident, ...]
    """Messages that were refused, and from whom."""
    output: Path | None
    finished: bool
    recovery: RecoveryReport | None = None
    """How far a recovered gradient was from plain autograd's when that was tried before the first round."""
    network: tuple[DrawnLayer, ...] = ()
    """Its layers in the order in which they compute."""
    coverage: Coverage | None = None
    """What perturbation hid of the model, parameter by parameter; None with any other protection."""
    best_round: int | None = None
    """With validation data: `model` and `metrics` are of the model after so many rounds, which was best on them."""
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    """The plan's `evaluation.metrics` of each class on the server's test data."""
    per_site: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of each site's samples in the server's test data, where these say whose they are."""
    warnings: tuple[str, ...] = ()
    told_by_sites: dict[str, dict[str, float]] = field(default_factory=dict)
    """With `evaluation.site_metrics = "share"`: what each site told last, and of the model after how many rounds."""

    def as_dict(self) -> dict[str, Any]:
        metric, value = main_metric(self.metrics)
        return {
            "metric": metric,
            "metric_value": value,
            "metrics": self.metrics,
            "best_round": self.best_round,
            "per_class": self.per_class,
            "per_site": self.per_site,
            "told_by_sites": self.told_by_sites,
            "warnings": list(self.warnings),
            "metrics_of_fedavg": self.metrics_of_fedavg,
            "yardstick": yardstick_of(self.plan),
            "rounds": self.rounds,
            "finished": self.finished,
            "seconds": round(self.seconds, 3),
            "megabytes_up": round(self.transcript.bytes_up / 1e6, 6),
            "megabytes_down": round(self.transcript.bytes_down / 1e6, 6),
            "traffic": self.transcript.traffic_rows(),
            "network": [layer.as_dict() for layer in self.network],
            "coverage": self.coverage.as_dict() if self.coverage else None,
            "recovery_error": self.recovery.error if self.recovery else None,
            "difference_to_fedavg": self.difference_to_fedavg,
            "final_difference_to_fedavg": self.final_difference_to_fedavg,
            "client_view": self.view.as_dict() if self.view else None,
            "dealer": self.plan.federation.dealer if self.plan.traits.computes_on_shares else None,
            "rounds_failed": [asdict(failed) for failed in self.failed],
            "incidents": [asdict(incident) for incident in self.incidents],
            "privacy": self.privacy.as_dict() if self.privacy else None,
            "ladder": asdict(self.plan.rung) if self.plan.rung else None,
            "guarantee": self.guarantee.as_dict(),
            "output": str(self.output) if self.output else None,
        }
