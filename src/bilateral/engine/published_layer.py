"""P2's scheme and its two ablations for a plan, as published: both sides, noise levels, and what they claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from bilateral.baselines import mp_cdp, mp_dp_naive
from bilateral.baselines.mp_cdp import MpCdpServer
from bilateral.baselines.mp_dp_naive import MpDpNaiveClient
from bilateral.engine.layers import (
    ClientParts,
    Layer,
    Seat,
    Surroundings,
    make_perturb_client,
    make_perturb_server,
    recovery_check,
)
from bilateral.errors import PlanError
from bilateral.learning.upload_check import UploadShape
from bilateral.learning.uploading import AddPairwise
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.noise import published_accounting as theorems
from bilateral.protocols.noise.accounting import ReportRow, spent
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.noise.published import PublishedNoiseClient
from bilateral.protocols.noise.published_model import PublishedModel, published_settings
from bilateral.protocols.noise.published_server import PublishedServer
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.scheme import term_names
from bilateral.randomness import Randomness


def sensitivity(around: Surroundings) -> float:
    """How far one unit is *assumed* to move a client's true mean gradient.

    P2 sets it to the clipping norm (and that to 1), and nobody clips. For one sample of a batch that is norm / batch,
    though replacing a sample of that norm can move the mean by twice as much; the report says what is assumed.
    """
    noise, training = around.plan.noise, around.plan.training
    if noise.unit == "client":
        return noise.clip
    smallest = min(around.sample_counts)
    return noise.clip / (min(training.batch_size, smallest) or smallest)


def published_layer(around: Surroundings) -> Layer:
    """MP_Server, DDP_Client and MU_Server."""
    plan, count, problem = around.plan, around.num_participants, around.problem
    settings = published_settings(plan.perturbation.partitions, plan.perturbation.norm_inputs)
    public = PublishedModel.of(around.model, around.graph, problem.examples[:2])
    graph, neighbours = _graph(around)
    levels = theorems.solve_noise(
        _epsilon(around), plan.noise.delta, count, graph, neighbours, sensitivity=sensitivity(around)
    )

    def make_server(model: nn.Module) -> PublishedServer:
        expanded = PublishedModel.of(model, around.graph, problem.examples[:2])  # shares the parameters of `model`
        secrets = around.secrets.stream("server")
        return PublishedServer(
            expanded, problem.input_shape, count, plan.perturbation.partitions, secrets, problem.examples
        )

    def make_client(seat: Seat) -> ClientParts:
        half = make_perturb_client(around, seat, settings, expanded=(public.model, public.graph))
        return ClientParts(half, around.batch_schedule(seat))

    def pairwise(ring: KeyRing) -> AddPairwise:
        own = around.secrets.stream("noise", ring.name)
        return PublishedNoiseClient(ring.name, public, levels, ring, _Neighbours(ring, around), own).add_noise

    stated = theorems.guarantee(settings, _epsilon(around), plan.noise.delta, count, graph, neighbours)
    return Layer(
        make_server,
        make_client,
        UploadShape(len(term_names(settings)), public.graph.num_parameters, public.graph.num_statistics),
        [stated],
        pairwise=pairwise,
        weight=1,
        privacy=_report(
            around,
            "an observer of the first uploaded term who does not know the scale factors",
            stated.claims[-1].assumption,
            {"independent": levels.independent, "pairwise": levels.pairwise},
        ),
        check=_recovery_check(around),
    )


def _recovery_check(around: Surroundings) -> RecoveryCheck:
    """P2's halves, with transitional layers and factors by Eq. (13), and without noise."""
    plan, problem = around.plan, around.problem
    settings = published_settings(plan.perturbation.partitions, plan.perturbation.norm_inputs)

    def make_halves(model: nn.Module, inputs: Tensor, randomness: Randomness) -> tuple[PublishedServer, PerturbClient]:
        expanded, own = PublishedModel.of(model, around.graph, inputs[:2]), randomness.child("server")
        server = PublishedServer(expanded, problem.input_shape, 1, plan.perturbation.partitions, own, inputs)
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


def mp_cdp_layer(around: Surroundings) -> Layer:
    """Noise of a trusted server."""
    plan, count, settings = around.plan, around.num_participants, around.perturbation
    sigma = theorems.central_sigma(_epsilon(around), plan.noise.delta, count, sensitivity=sensitivity(around))

    def make_server(model: nn.Module) -> MpCdpServer:
        inner = make_perturb_server(around, model, settings)
        return MpCdpServer(inner, model, around.graph, sigma, count, around.secrets.stream("noise"))

    def make_client(seat: Seat) -> ClientParts:
        return ClientParts(make_perturb_client(around, seat, settings), around.batch_schedule(seat))

    stated = mp_cdp.guarantee(settings, _epsilon(around), plan.noise.delta)
    privacy = _report(
        around, "whoever sees models alone; the server is trusted", stated.claims[-1].assumption, {"central": sigma}
    )
    return Layer(
        make_server,
        make_client,
        _shape(around),
        [stated],
        weight=1,
        privacy=privacy,
        check=recovery_check(around),
    )


def mp_dp_naive_layer(around: Surroundings) -> Layer:
    """Normal noise of every client on the perturbed gradient."""
    plan, settings = around.plan, around.perturbation
    sigma = theorems.local_sigma(_epsilon(around), plan.noise.delta, sensitivity=sensitivity(around))

    def make_client(seat: Seat) -> ClientParts:
        inner, own = make_perturb_client(around, seat, settings), around.secrets.stream("noise", seat.name)
        half = MpDpNaiveClient(inner, around.model, around.graph, sigma, own)
        return ClientParts(half, around.batch_schedule(seat))

    stated = mp_dp_naive.guarantee(settings, _epsilon(around), plan.noise.delta)
    privacy = _report(around, "an observer of the first uploaded term", stated.claims[-1].assumption, {"local": sigma})
    return Layer(
        lambda model: make_perturb_server(around, model, settings),
        make_client,
        _shape(around),
        [stated],
        weight=1,
        privacy=privacy,
        check=recovery_check(around),
    )


def _shape(around: Surroundings) -> UploadShape:
    graph = around.graph
    return UploadShape(len(term_names(around.perturbation)), graph.num_parameters, graph.num_statistics)


class _Neighbours:
    """A client's neighbours on the round's graph, which nobody chooses (`graph_seed`)."""

    def __init__(self, ring: KeyRing, around: Surroundings) -> None:
        self._ring = ring
        self._settings = around.plan.aggregation.settings()

    def __call__(self, round_index: int, participants: Sequence[str]) -> Sequence[str]:
        ordered = tuple(sorted(participants))
        seed = graph_seed(self._ring.roster_digest, round_index, 0, ordered)
        return PairGraph.of(ordered, self._settings, seed).neighbours(self._ring.name)


def _report(around: Surroundings, observer: str, assumption: str, deviations: dict[str, float]) -> PrivacyReport:
    """One round as P2 counts, and all rounds as they would compose if the claim for one held."""
    plan = around.plan
    ratio = 1.0 / theorems.theta_of(_epsilon(around), plan.noise.delta) ** 0.5
    total = spent(ratio, 1.0, plan.training.rounds, plan.noise.delta).epsilon
    moved = f"one {plan.noise.unit} moves a client's mean gradient by at most {sensitivity(around):.3g}"
    row = ReportRow(observer, _epsilon(around), total, plan.noise.delta, f"{moved}; {assumption}")
    return PrivacyReport("published, conditional", plan.noise.unit, deviations, (row,))


def _epsilon(around: Surroundings) -> float:
    epsilon = around.plan.noise.epsilon
    if epsilon is None:
        raise PlanError("The published noise needs an epsilon.", remedy="Set noise.epsilon; P2 uses 1 to 10.")
    return epsilon


def _graph(around: Surroundings) -> tuple[Literal["complete", "n-out"], int]:
    settings, count = around.plan.aggregation.settings(), around.num_participants
    chosen = settings.num_chosen(count)
    return ("complete", 0) if chosen == count - 1 else ("n-out", chosen)
