"""P2's scheme and its two ablations for a plan, as published: halves, noise levels, and what they claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bilateral.baselines import mp_cdp, mp_dp_naive
from bilateral.baselines.mp_cdp import MpCdpServer
from bilateral.baselines.mp_dp_naive import MpDpNaiveClient
from bilateral.engine.layers import (
    NUM_CALIBRATION_SAMPLES,
    Layer,
    Surroundings,
    make_perturb_clients,
    make_perturb_server,
)
from bilateral.errors import PlanError
from bilateral.learning.masked_aggregation import UploadShape
from bilateral.learning.uploading import AddPairwise
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.noise import published_accounting as theorems
from bilateral.protocols.noise.accounting import ReportRow, spent
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.noise.published import PublishedNoiseClient
from bilateral.protocols.noise.published_model import PublishedModel, published_settings
from bilateral.protocols.noise.published_server import PublishedServer
from bilateral.protocols.perturb.scheme import term_names


def sensitivity(around: Surroundings) -> float:
    """How far one unit is *assumed* to move a client's true mean gradient.

    P2 sets it to the clipping norm (and that to 1), and nobody clips. For one sample of a batch that is norm / batch,
    though replacing a sample of that norm can move the mean by twice as much; the report says what is assumed.
    """
    noise, training = around.plan.noise, around.plan.training
    if noise.unit == "client":
        return noise.clip
    smallest = min(len(client.data) for client in around.federation.clients)
    return noise.clip / (min(training.batch_size, smallest) or smallest)


def published_layer(around: Surroundings, keys: Sequence[KeyRing]) -> tuple[Layer, list[AddPairwise]]:
    """MP_Server, DDP_Client and MU_Server; the pairwise noise is returned beside the layer."""
    plan, count = around.plan, around.num_participants
    model = PublishedModel.of(around.model, around.graph, around.federation.test.inputs[:2])
    settings = published_settings(plan.perturbation.partitions)
    samples = around.federation.test.inputs[:NUM_CALIBRATION_SAMPLES]
    server = PublishedServer(
        model,
        around.federation.dataset.input_shape,
        count,
        plan.perturbation.partitions,
        around.secrets.child("server"),
        samples,
    )
    halves = make_perturb_clients(around, settings, expanded=(model.model, model.graph))
    graph, neighbours = _graph(around)
    levels = theorems.solve_noise(
        _epsilon(around), plan.noise.delta, count, graph, neighbours, sensitivity=sensitivity(around)
    )
    noisy = [
        PublishedNoiseClient(
            ring.name,
            model,
            levels,
            ring,
            _Neighbours(ring, around),
            around.secrets.child("noise", ring.name),
        )
        for ring in keys
    ]
    shape = UploadShape(len(term_names(settings)), model.graph.num_parameters, model.graph.num_statistics)
    stated = theorems.guarantee(settings, _epsilon(around), plan.noise.delta, count, graph, neighbours)
    layer = Layer(server, halves, shape, [stated], around.batch_schedules(), weight=1)
    layer.privacy = _report(
        around,
        "an observer of the first uploaded term who does not know the scale factors",
        stated.claims[-1].assumption,
        {"independent": levels.independent, "pairwise": levels.pairwise},
    )
    return layer, [one.add_noise for one in noisy]


def mp_cdp_layer(around: Surroundings) -> Layer:
    """Noise of a trusted server."""
    plan, count = around.plan, around.num_participants
    settings = plan.perturbation.settings(around.federation.loss)
    sigma = theorems.central_sigma(_epsilon(around), plan.noise.delta, count, sensitivity=sensitivity(around))
    server = MpCdpServer(
        make_perturb_server(around, settings), around.model, around.graph, sigma, count, around.secrets.child("noise")
    )
    stated = mp_cdp.guarantee(settings, _epsilon(around), plan.noise.delta)
    shape = UploadShape(len(term_names(settings)), around.graph.num_parameters, around.graph.num_statistics)
    layer = Layer(server, make_perturb_clients(around, settings), shape, [stated], around.batch_schedules(), weight=1)
    layer.privacy = _report(
        around, "whoever sees models alone; the server is trusted", stated.claims[-1].assumption, {"central": sigma}
    )
    return layer


def mp_dp_naive_layer(around: Surroundings) -> Layer:
    """Normal noise of every client on the perturbed gradient."""
    plan = around.plan
    settings = plan.perturbation.settings(around.federation.loss)
    sigma = theorems.local_sigma(_epsilon(around), plan.noise.delta, sensitivity=sensitivity(around))
    halves = [
        MpDpNaiveClient(inner, around.model, around.graph, sigma, around.secrets.child("noise", inner.name))
        for inner in make_perturb_clients(around, settings)
    ]
    stated = mp_dp_naive.guarantee(settings, _epsilon(around), plan.noise.delta)
    shape = UploadShape(len(term_names(settings)), around.graph.num_parameters, around.graph.num_statistics)
    server = make_perturb_server(around, settings)
    layer = Layer(server, halves, shape, [stated], around.batch_schedules(), weight=1)
    layer.privacy = _report(
        around, "an observer of the first uploaded term", stated.claims[-1].assumption, {"local": sigma}
    )
    return layer


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
