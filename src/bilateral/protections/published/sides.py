"""P2's scheme for a plan, as published: both sides, noise levels, and what they claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from bilateral.learning.uploading import AddPairwise
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.perturbation.halves import make_perturb_client
from bilateral.protections.published.claims import claimed_epsilon, report, sensitivity
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import UploadShape
from bilateral.protocols.noise import published_accounting as theorems
from bilateral.protocols.noise.published import PublishedNoiseClient
from bilateral.protocols.noise.published_model import PublishedModel, published_settings
from bilateral.protocols.noise.published_server import PublishedServer
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.scheme import term_names
from bilateral.randomness import Randomness


def published_sides(around: Groundwork) -> Sides:
    """MP_Server, DDP_Client and MU_Server."""
    plan, count, problem, epsilon = around.plan, around.num_participants, around.problem, claimed_epsilon(around)
    settings = published_settings(plan.perturbation.partitions, plan.perturbation.norm_inputs)
    public = PublishedModel.of(around.model, around.graph, problem.examples[:2])
    graph, neighbours = _graph(around)
    levels = theorems.solve_noise(epsilon, plan.noise.delta, count, graph, neighbours, sensitivity=sensitivity(around))

    def make_server(model: nn.Module) -> PublishedServer:
        expanded = PublishedModel.of(model, around.graph, problem.examples[:2])  # shares the parameters of `model`
        secrets = around.secrets.stream("server")
        return PublishedServer(expanded, count, plan.perturbation.partitions, secrets, problem.examples)

    def make_client(seat: Seat) -> ClientParts:
        basis = replace(around.basis(seat), model=public.model, layout=public.graph)
        return ClientParts(make_perturb_client(basis, settings), around.batch_schedule(seat))

    def pairwise(ring: KeyRing) -> AddPairwise:
        own = around.secrets.stream("noise", ring.name)
        return PublishedNoiseClient(ring.name, public, levels, ring, _Neighbours(ring, around), own).add_noise

    stated = theorems.guarantee(settings, epsilon, plan.noise.delta, count, graph, neighbours)
    return Sides(
        make_server,
        make_client,
        UploadShape(len(term_names(settings)), public.graph.num_parameters, public.graph.num_statistics),
        (stated,),
        pairwise=pairwise,
        weight=1,
        privacy=report(
            around,
            "an observer of the first uploaded term who does not know the scale factors",
            stated.claims[-1].assumption,
            {"independent": levels.independent, "pairwise": levels.pairwise},
        ),
        check=_recovery_check(around),
    )


def _recovery_check(around: Groundwork) -> RecoveryCheck:
    """P2's halves, with transitional layers and factors by Eq. (13), and without noise."""
    plan, problem = around.plan, around.problem
    settings = published_settings(plan.perturbation.partitions, plan.perturbation.norm_inputs)

    def make_halves(model: nn.Module, inputs: Tensor, randomness: Randomness) -> tuple[PublishedServer, PerturbClient]:
        expanded, own = PublishedModel.of(model, around.graph, inputs[:2]), randomness.child("server")
        server = PublishedServer(expanded, 1, plan.perturbation.partitions, own, inputs)
        channels_last = plan.training.channels_last
        return server, PerturbClient(
            "the check",
            expanded.model,
            expanded.graph,
            settings,
            randomness.child("client"),
            channels_last=channels_last,
        )

    return RecoveryCheck(around.graph, settings.loss, make_halves, problem.examples)


class _Neighbours:
    """A client's neighbours on the round's graph, which nobody chooses (`graph_seed`)."""

    def __init__(self, ring: KeyRing, around: Groundwork) -> None:
        self._ring = ring
        self._settings = around.plan.aggregation.settings()

    def __call__(self, round_index: int, participants: Sequence[str]) -> Sequence[str]:
        ordered = tuple(sorted(participants))
        seed = graph_seed(self._ring.roster_digest, round_index, 0, ordered)
        return PairGraph.of(ordered, self._settings, seed).neighbours(self._ring.name)


def _graph(around: Groundwork) -> tuple[Literal["complete", "n-out"], int]:
    settings, count = around.plan.aggregation.settings(), around.num_participants
    chosen = settings.num_chosen(count)
    return ("complete", 0) if chosen == count - 1 else ("n-out", chosen)
