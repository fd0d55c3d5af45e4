"""Noise as the real parties of a plan draw it, many trials at once, for games between two neighbouring worlds.

All mechanisms here add noise that is independent of the data, and independent from coordinate to coordinate (for sound
noise both hold to the last bit, which is a formal guarantee of protocols/noise/sound.py). So the data before noise are
computed once a world, and only the real noise is repeated; and an upload of many coordinates that are all zero is as
many trials of a unit that changes one coordinate. Gaussian noise looks the same in every direction: a unit that
changes many coordinates is the same game as one that changes one coordinate by as much (in noise deviations).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.experiment import Context
from bilateral.engine.federation import Federation
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import analyse, initial_model
from bilateral.learning.halves import ClientHalf, ServerHalf
from bilateral.protections.fedavg.halves import FedAvgServer
from bilateral.protections.fedavg.protection import FedSgd
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.mp_cdp.server import MpCdpServer, trained_elements
from bilateral.protections.mp_dp_naive.client import MpDpNaiveClient
from bilateral.protections.perturbation.halves import make_perturb_client, make_perturb_server
from bilateral.protections.sides import Seat
from bilateral.protocols.messages import Aggregate, Upload
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.distributions import uniform_noise
from bilateral.protocols.noise.published_model import PublishedModel
from bilateral.protocols.noise.sound import DistributedGaussian, SoundNoiseSettings
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.randomness import Randomness

CANARY_SIZE = 100.0
"""Inputs of a canary are this many times as large as an honest sample's, so that clipping must act on it."""
_SCALE_RANGE = (0.25, 4.0)
"""Of factors that stand in no trained weight's ratio; P2's scheme draws the others by its own distributions."""
Batch = tuple[Tensor, Tensor]


def groundwork_of(context: Context) -> Groundwork:
    """What the engine builds the plan's sides from."""
    plan, federation = context.plan, context.federation()
    model = initial_model(plan, federation.problem)
    secrets = SimulatedSecrets(plan.seed, federation.names)
    graph = analyse(model, federation.problem, plan.perturbation.norm_inputs)
    return Groundwork(plan, federation.problem, federation.members, model, graph, secrets)


def sound_noise_of(
    settings: SoundNoiseSettings,
    num_terms: int,
    num_clients: int,
    num_trials: int,
    round_index: int,
    randomness: Randomness,
) -> Tensor:
    """What `num_clients` clients add to a sum, by their own code: terms x trials."""
    total = torch.zeros(num_terms, num_trials, dtype=torch.float64)
    counts = torch.zeros(int(settings.adaptive is not None), dtype=torch.float64)
    nothing = Upload(round_index, 1, torch.zeros_like(total), counts)
    for number in range(num_clients):
        client = DistributedGaussian(f"client {number}", settings, randomness.child("client", number))
        total += client.add_noise(nothing, round_index).terms
    return total


@dataclass(frozen=True)
class PublishedDraws:
    """The ratios R that the server knows: of weights that were chosen beforehand, and of each round's quietest one."""

    beforehand: Tensor
    quietest: Tensor


def published_draws(
    model: PublishedModel, num_rounds: int, randomness: Randomness, on_progress: Callable[[float], None]
) -> PublishedDraws:
    """Scale factors as the server draws them, round by round (P2 Eq. 13)."""
    whole, separate = whole_weights(model), separate_weights(model)
    beforehand: list[Tensor] = []
    quietest: list[Tensor] = []
    for number in range(num_rounds):
        ratio = ratio_of_round(model, randomness.child("round", number))
        beforehand.append(ratio[separate])
        quietest.append(ratio[whole].min())
        if number % 500 == 0:
            on_progress(number / num_rounds)
    return PublishedDraws(torch.cat(beforehand), torch.stack(quietest))


def separate_weights(model: PublishedModel) -> Tensor:
    """Places of weights that have no factor in common: each is a trial of its own in every round."""
    taken: set[int] = {0}
    places: list[int] = []
    whole = set(whole_weights(model).tolist())
    for layout in model.graph.parameters:
        binding = layout.binding
        if binding is None or binding.numerator is None or binding.denominator is None:
            continue
        above, below = binding.numerator.expand(layout.shape), binding.denominator.expand(layout.shape)
        for number in range(min(layout.shape[:2])):
            index = (number, number, *(0 for _ in layout.shape[2:]))
            classes = {int(above[index]), int(below[index])}
            place = layout.offset + int(np.ravel_multi_index(index, layout.shape))
            if place in whole and not classes & taken:
                taken |= classes
                places.append(place)
    return torch.tensor(places) if places else whole_weights(model)[:1]


def whole_weights(model: PublishedModel) -> Tensor:
    """Places of the trained weights whose noise is uniform given R: all of a network without biases."""
    return model.trained[model.missing_halves[model.trained] == 0]


def ratio_of_round(model: PublishedModel, randomness: Randomness) -> Tensor:
    return model.graph.ratio(model.factors.draw(model.graph, _SCALE_RANGE, randomness))


def uniform_sum(sigma: float, num_clients: int, count: int, randomness: Randomness) -> Tensor:
    """The independent noise of all clients in a sum. (The pairwise noise is not in it: it cancels.)"""
    total = torch.zeros(count, dtype=torch.float64)
    for number in range(num_clients):
        total += uniform_noise(sigma, count, randomness.child("client", number))
    return total


def local_noise(around: Groundwork, batch: Batch, sigma: float, count: int, randomness: Randomness) -> Tensor:
    """MP-DP-Naive: what one client adds to its upload, coordinate by coordinate, from as many rounds as it takes."""
    inner = make_perturb_client(around.basis(first_seat(around)), around.perturbation)
    noisy = MpDpNaiveClient(inner, around.model, around.graph, sigma, randomness)
    places = trained_elements(around.model, around.graph)
    parts: list[Tensor] = []
    while sum(map(len, parts)) < count:
        number = len(parts)
        found = _upload_of(noisy, _perturb_server(around), batch, number).terms[0].double()
        parts.append((found - perturbed_upload(around, batch, number).terms[0].double())[places])
    return torch.cat(parts)[:count]


def central_noise(around: Groundwork, sigma: float, count: int, randomness: Randomness) -> Tensor:
    """MP-CDP: what the server adds to the mean gradient, read from the recovery of empty sums."""
    model, clients = copy.deepcopy(around.model), around.num_participants
    inner = make_perturb_server(around, model, around.perturbation)
    server = MpCdpServer(inner, model, around.graph, sigma, clients, randomness)
    places = trained_elements(model, around.graph)
    terms = torch.zeros(len(term_names(around.perturbation)), around.graph.num_parameters, dtype=torch.float64)
    statistics = torch.zeros(around.graph.num_statistics, dtype=torch.float64)
    parts: list[Tensor] = []
    while sum(map(len, parts)) < count:
        server.start_round(len(parts))
        empty = Aggregate(len(parts), clients, terms, statistics)
        parts.append((server.recover(empty).gradient - server.recover_one(empty).gradient)[places])
    return torch.cat(parts)[:count]


def honest_batches(around: Groundwork, federation: Federation) -> tuple[Batch, Batch]:
    """A client's batch in two neighbouring worlds, as they are: one sample, or the whole client, is another's."""
    mine, others = federation.shares[around.names[0]], federation.shares[around.names[1]]
    size = min(around.plan.training.batch_size or len(mine), len(mine), len(others))
    batch = (mine.inputs[:size], mine.targets[:size])
    if around.plan.noise.unit == "client":
        return batch, (others.inputs[:size], others.targets[:size])
    changed = (batch[0].clone(), batch[1].clone())
    changed[0][0], changed[1][0] = others.inputs[0], others.targets[0]
    return batch, changed


def clipped_difference(
    around: Groundwork, federation: Federation, half: ClientHalf, server: ServerHalf, clip: ClipSettings
) -> float:
    """How far a canary moves what a clipping client sends, in the norm that clipping bounds; measured.

    The canary is one sample with huge inputs, in or out of a batch, or a client with such inputs, there or not.
    """
    share = federation.shares[around.names[0]]
    inputs, targets = share.inputs[:4].clone(), share.targets[:4]
    message = server.start_round(0)
    if clip.unit == "client":
        sent = half.train(message, CANARY_SIZE * inputs, targets, 1)
        assert isinstance(sent, Upload)
        difference = sent.terms.double()
    else:
        inputs[0] *= CANARY_SIZE
        inside, outside = half.train(message, inputs, targets, 1), half.train(message, inputs[1:], targets[1:], 1)
        assert isinstance(inside, Upload)
        assert isinstance(outside, Upload)
        difference = inside.terms.double() - outside.terms.double()
    return float((difference * clip.scales(len(difference))[:, None]).norm())


def true_gradient(around: Groundwork, batch: Batch) -> Tensor:
    """The mean gradient of a batch, without any protection."""
    server = FedAvgServer(around.model, around.graph)
    return _upload_of(FedSgd().make_client(around.basis(first_seat(around))), server, batch, 0).terms[0].double()


def perturbed_upload(around: Groundwork, batch: Batch, round_index: int = 0) -> Upload:
    """What a perturbing client sends, without noise; the secrets of a round are the same at every call."""
    half = make_perturb_client(around.basis(first_seat(around)), around.perturbation)
    return _upload_of(half, _perturb_server(around), batch, round_index)


def smallest_ratio(around: Groundwork) -> float:
    """perturbed / plain of the parameter that the first round shrinks most."""
    server = _perturb_server(around)
    server.start_round(0)
    ratio = server.secrets.ratio[trained_elements(around.model, around.graph)]
    return float(ratio.abs().min())


def first_seat(around: Groundwork) -> Seat:
    return Seat(around.names[0], around.sample_counts[0])


def _perturb_server(around: Groundwork) -> PerturbServer:
    return make_perturb_server(around, copy.deepcopy(around.model), around.perturbation)


def _upload_of(half: ClientHalf, server: ServerHalf, batch: Batch, round_index: int) -> Upload:
    """One client's round; no mechanism here has an exchange inside it."""
    reply = half.train(server.start_round(round_index), *batch, 1)
    assert isinstance(reply, Upload)
    return reply
