"""What the server of a heterogeneous run knows, and keeps: how far every client is, and what was measured there.

It is in the run directory's checkpoint. That has no tensors if the clients are sites: networks and sums are with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bilateral.engine.checkpoint import Checkpoint, matching_checkpoint, putting_back, save_checkpoint
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError, ProtocolError
from bilateral.runs.hetero.messages import HeteroCard
from bilateral.runs.hetero.parties import guarantee_of
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.result import ClientOutcome, HeteroProgress, HeteroResult
from bilateral.runs.hetero.staged_client import Measure
from bilateral.runs.hetero.steps import num_measured, num_stages, stages_of

_STAGES = "stages of "


@dataclass(frozen=True)
class PublicFacts:
    """What a table about a run names and the protocol does not say: a simulation knows it, and tells its server."""

    dataset: str
    num_samples: Mapping[str, int]


@dataclass
class SiteRecord:
    """One client: the number of its stages that are done, and the measures among them."""

    stage: int = 0
    accuracies: list[float] = field(default_factory=list)
    num_queries: list[int] = field(default_factory=list)


@dataclass
class HeteroRecord:
    """The server's state between two stages. `term`: the last that was begun; -1 before the first.

    `answered`: which share of the queries at hand, for the progress.
    """

    plan: HeteroPlan
    facts: PublicFacts
    term: int = -1
    seconds: float = 0.0
    answered: float = 0.0
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    at_sites: bool = True
    """Do the clients keep their own networks, elsewhere?"""

    def __post_init__(self) -> None:
        self.sites = self.sites or {name: SiteRecord() for name in self.facts.num_samples}

    @staticmethod
    def load(plan: HeteroPlan, facts: PublicFacts, directory: RunDirectory) -> HeteroRecord:
        """What the last term kept."""
        record = HeteroRecord(plan, facts)
        found = matching_checkpoint(plan.digest(), directory.checkpoint)
        with putting_back(directory.checkpoint):
            record.load_state(found)
        return record

    def save(self, directory: RunDirectory) -> None:
        """Replace the checkpoint, atomically."""
        save_checkpoint(self.checkpoint({}), directory.checkpoint)

    def begin_term(self) -> None:
        self.term, self.answered = self.term + 1, 0.0

    def load_state(self, found: Checkpoint) -> None:
        """Take over what a checkpoint says."""
        counters = found.counters
        if ("term" in counters) != self.at_sites:
            raise CheckpointError(
                "That is a run in one process: its networks are in one file, and not with sites."
                if self.at_sites
                else "That is a run on sites: its networks are with them, and not in one file.",
                remedy=f"Go on with it by {'the in-process engine' if self.at_sites else 'the engine it was made by'}.",
            )
        self.seconds, self.answered = counters["seconds"], counters.get("answered", 0.0)
        self.term = int(counters["term"] if self.at_sites else counters.get("resumed", 0))
        for position, (name, site) in enumerate(self.sites.items()):
            own = [row for row in found.rows if row["client"] == name]
            done = found.next_round + len(self.sites) - 1 - position  # in one process clients take turns
            site.stage = int(counters[f"{_STAGES}{name}"]) if self.at_sites else done // len(self.sites)
            site.accuracies = [float(row["accuracy"]) for row in own]
            site.num_queries = [int(row["queries"] or 0) for row in own]
            if not site.stage <= num_stages(self.plan) or len(own) != num_measured(site.stage):
                raise ValueError(f"{name} cannot have done {site.stage} stages with {len(own)} measures")

    def checkpoint(self, tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
        """All that is known here. In one process `tensors` are everybody's networks and sums."""
        rows: list[dict[str, Any]] = [
            {"client": name, "iteration": iteration, "accuracy": accuracy, "queries": queries}
            for name, site in self.sites.items()
            for iteration, (accuracy, queries) in enumerate(zip(site.accuracies, site.num_queries, strict=True))
        ]
        counters: dict[str, float] = {"seconds": self.seconds}
        if self.at_sites:
            counters = {"term": self.term, "seconds": self.seconds, "answered": self.answered}
            counters |= {f"{_STAGES}{name}": site.stage for name, site in self.sites.items()}
        else:
            counters["resumed"] = self.term
            rows = [{**row, "queries": row["queries"] if row["iteration"] else None} for row in rows]
            rows.sort(key=lambda row: int(row["iteration"]))  # as it happened
        return Checkpoint(self.plan.digest(), self.stages_done, tensors, rows, counters)

    def take_card(self, name: str, card: HeteroCard) -> None:
        """Believe a site about its own state: it may have done a stage whose reply was lost. Others are refused."""
        check_card(name, card, self.plan)
        site = self.sites[name]
        if card.stage not in (site.stage, site.stage + 1):
            raise CheckpointError(
                f"{name} has done {card.stage} of its stages, {site.stage} by what the server kept.",
                remedy=f"Give {name} back the state of this run, or start a new run.",
            )
        self.sites[name] = SiteRecord(card.stage, card.accuracies.tolist(), list(card.num_queries))

    def advance(self, name: str) -> None:
        """A site has asked."""
        self.sites[name].stage += 1
        self.answered = 0.0

    def measured(self, name: str, measure: Measure) -> None:
        """A client has trained, and says how well."""
        site = self.sites[name]
        site.stage += 1
        site.accuracies.append(measure.accuracy)
        site.num_queries.append(measure.num_queries)

    def at_stage(self, stage: int) -> list[str]:
        """The sites that have done just so many of their stages."""
        return [name for name, site in self.sites.items() if site.stage == stage]

    @property
    def stages_done(self) -> int:
        return sum(site.stage for site in self.sites.values())

    @property
    def finished(self) -> bool:
        return self.stages_done == num_stages(self.plan) * len(self.sites)

    def progress(self) -> HeteroProgress:
        stages = stages_of(self.plan, self.facts.num_samples)
        left = [stage for stage in stages if self.sites[stage.client].stage <= stage.own_index]
        at_hand = left[0] if left else None
        work_left = sum(stage.work for stage in left)
        if at_hand is not None and at_hand.kind == "ask":
            work_left -= self.answered * at_hand.work
        share_done = 1.0 - work_left / sum(stage.work for stage in stages)
        return HeteroProgress(share_done, len(stages) - len(left), len(stages), at_hand)

    def result(self, output: Path | None) -> HeteroResult:
        clients = tuple(
            ClientOutcome(
                name,
                self.plan.clients.label(name),
                self.facts.num_samples[name],
                tuple(site.accuracies),
                site.num_queries[-1] if len(site.num_queries) > 1 else None,
            )
            for name, site in self.sites.items()
        )
        total = num_stages(self.plan) * len(self.sites)
        guarantee = guarantee_of(self.plan)
        return HeteroResult(
            self.plan, self.facts.dataset, clients, guarantee, self.seconds, self.stages_done, total, output
        )


def check_card(name: str, card: HeteroCard, plan: HeteroPlan) -> None:
    """Refuse a card that no site of this plan has."""
    if not 0 <= card.stage <= num_stages(plan):
        raise ProtocolError(f"{name} has done {card.stage} stages, by its card; the plan has {num_stages(plan)}.")
    measured = num_measured(card.stage)
    check_accuracies(name, card.accuracies, measured)
    if len(card.num_queries) != measured or not all(0 <= n <= plan.queries.number for n in card.num_queries):
        raise ProtocolError(f"{name} sent a card with other numbers of queries than it can have asked.")


def check_accuracies(name: str, accuracies: torch.Tensor, count: int) -> None:
    """Refuse what are not so many accuracies."""
    fits = tuple(accuracies.shape) == (count,) and accuracies.dtype == torch.float64
    if not fits or not bool(((accuracies >= 0) & (accuracies <= 1)).all()):
        raise ProtocolError(f"{name} sent what are not {count} accuracies between 0 and 1.")
