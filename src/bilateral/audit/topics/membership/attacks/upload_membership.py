"""Membership in a batch, by the server: was this sample among those that an upload was computed from?

What the server reads (`read_upload`): the naive one takes an upload's numbers as they come, masked or not; the adaptive
one undoes the perturbation with its secrets. Where uploads are masked it has nothing but the sum, the same for every
client. Then, for each candidate, from the candidate's own gradient at the round's model:

1. `likelihood ratio`: LiRA on shadow uploads, which the server simulates from samples of its own, with the candidate
   and without it. The statistic is the alignment of the two gradients (Nasr et al. 2019, section V), after a matched
   filter for the noise that the other samples of a batch are: without the filter a batch of 32 hides its samples well.
2. `decomposition`: least squares of the upload by the gradients of all candidates at once. A batch gradient is a mean
   of some of them; with fewer candidates than parameters the solution says of which, and with which weight.

3. `pairwise likelihood ratio`: the first, compared with that of samples of the server's own that are in no batch, as
   RMIA does (`rmia`). Within one upload it orders candidates as the first does; between uploads it gives them a scale.

Beside the upload, the question of the cross-entropy exchange (ledger line 8) names the samples of a batch by their
softmax: `match_rows`. Scores are one number a candidate, higher for members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bilateral.audit.topics.inversion.attacks.uploads import masked_upload_of
from bilateral.audit.topics.membership.attacks.rmia import share_below
from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.errors import DataError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import HiddenUpload, Upload
from bilateral.randomness import Randomness

Method = Literal["likelihood ratio", "pairwise likelihood ratio", "decomposition"]
NUM_SHADOWS = 64
MAX_COORDINATES = 8_000
CHUNK = 64
RIDGES = (0.3, 0.03, 0.003, 0.0003)
SMALLEST = 1e-30


def read_upload(view: View, round_index: int, client: str, *, adaptive: bool) -> Tensor:
    """A gradient as the server reads it from what `client` sent (adaptive: from all that it has)."""
    upload = view.message(Upload, round_index=round_index, sender=client)
    held = view.server_round(round_index)
    if adaptive:
        return held.gradient_of(upload, client) if upload is not None else held.recovered()
    if upload is not None:
        return _sized(upload.terms[0], view)
    hidden = view.message(HiddenUpload, round_index=round_index, sender=client)
    if hidden is not None:
        return _sized(hidden.as_numbers(), view)
    masked = masked_upload_of(view, round_index, client)
    if masked is None:
        raise DataError(f"{client} sent no upload in round {round_index}.", remedy="Record that round (`keep`).")
    return _sized(masked.values, view)


def read_sum(view: View, round_index: int, *, adaptive: bool) -> Tensor:
    """The mean gradient of a round; the naive server takes the first term of the sum for it."""
    held = view.server_round(round_index)
    return held.recovered() if adaptive else _sized(held.total.terms[0], view)


def _sized(values: Tensor, view: View) -> Tensor:
    """Numbers as they come: as many as the model has parameters, at most 1 in size."""
    count = view.facts.graph.num_parameters
    flat = values.reshape(-1)[:count].double()
    return F.pad(flat / flat.abs().max().clamp_min(SMALLEST), (0, count - len(flat)))


@dataclass(frozen=True, eq=False)
class Bench:
    """Gradients of candidates and of the attacker's own samples at one model (samples x coordinates)."""

    coordinates: Tensor
    gradients: Tensor
    own_gradients: Tensor

    @staticmethod
    def of(graph: ScaleGraph, network: nn.Module, candidates: Split, own: Split, randomness: Randomness) -> Bench:
        """All coordinates, or a random part of them in a large model."""
        chosen = torch.arange(graph.num_parameters)
        if len(chosen) > MAX_COORDINATES:
            chosen = randomness.child("coordinates").permutation(len(chosen))[:MAX_COORDINATES].sort().values
        _fix_statistics(network, own.inputs)
        found = [sample_gradients(graph, network, part, chosen) for part in (candidates, own)]
        return Bench(chosen, found[0], found[1])

    def score(self, uploads: Tensor, method: Method, batch_size: int, randomness: Randomness) -> Tensor:
        """uploads x candidates, for uploads (at the coordinates) over `batch_size` samples."""
        if method == "decomposition":
            return decomposition(uploads, self.gradients, self.own_gradients)
        score = pairwise_ratio if method == "pairwise likelihood ratio" else likelihood_ratio
        return score(uploads, self.gradients, self.own_gradients, batch_size, randomness)


def sample_gradients(graph: ScaleGraph, network: nn.Module, samples: Split, coordinates: Tensor) -> Tensor:
    """samples x coordinates: the gradient of each sample's loss, flat in the graph's order."""
    values = {name: p.detach() for name, p in network.named_parameters()}

    def lost(parameters: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(network, parameters, (inputs[None],))[0]
        return F.mse_loss(outputs, target) if target.is_floating_point() else F.cross_entropy(outputs, target)

    per_sample = vmap(grad(lost), in_dims=(None, 0, 0), randomness="different")
    rows = []
    for start in range(0, len(samples), CHUNK):
        part = slice(start, start + CHUNK)
        found = per_sample(values, samples.inputs[part], samples.targets[part])
        rows.append(torch.cat([found[p.name].flatten(1) for p in graph.parameters], 1)[:, coordinates])
    return torch.cat(rows)


def likelihood_ratio(
    uploads: Tensor, gradients: Tensor, own_gradients: Tensor, batch_size: int, randomness: Randomness
) -> Tensor:
    """log p(upload | candidate in the batch) - log p(upload | not), normal for each candidate.

    Most of the attacker's samples measure the noise, every fourth makes shadow uploads. How much the noise's covariance
    is regularised is chosen by how well shadows are told apart.
    """
    is_drawn = torch.arange(len(own_gradients)) % 4 == 3
    measured, drawn, mean = own_gradients[~is_drawn], own_gradients[is_drawn], own_gradients.mean(0)
    rows = (randomness.uniform(NUM_SHADOWS, batch_size) * len(drawn)).long()
    shadows = torch.stack([drawn[row].mean(0) for row in rows]) - mean
    best, chosen = -torch.inf, torch.zeros(len(uploads), len(gradients))
    for ridge in RIDGES:
        filters = _whitened(gradients - mean, measured - mean, ridge)
        outside = shadows @ filters.T
        gap = (((gradients - mean) * filters).sum(1) - outside.mean(0)) / batch_size
        spread = outside.std(0).clamp_min(SMALLEST)
        separation = float((gap / spread).median())
        if separation > best:
            middle = outside.mean(0) + gap / 2
            best, chosen = separation, ((uploads - mean) @ filters.T - middle) * gap / spread.square()
    return chosen


def pairwise_ratio(
    uploads: Tensor, gradients: Tensor, own_gradients: Tensor, batch_size: int, randomness: Randomness
) -> Tensor:
    """The share of a quarter of the attacker's samples whose ratio a candidate's exceeds (RMIA with a gamma of 1).

    That quarter makes the shadow uploads too: samples apart for each purpose would cost the filter more than they give.
    """
    asked, count = torch.cat([gradients, own_gradients[3::4]]), len(gradients)
    found = likelihood_ratio(uploads, asked, own_gradients, batch_size, randomness)
    return torch.stack([share_below(row[:count], row[count:], gamma=1.0) for row in found])


def _whitened(vectors: Tensor, noise: Tensor, ridge: float) -> Tensor:
    """(C + r)^-1 v up to a factor; C is the covariance of `noise`, r a part of its mean variance (Woodbury)."""
    count = len(noise)
    products = noise @ noise.T
    inner = products + ridge * products.trace() / count * torch.eye(count, dtype=noise.dtype)
    weights: Tensor = torch.linalg.solve(inner, noise @ vectors.T)
    return vectors - weights.T @ noise


def decomposition(uploads: Tensor, gradients: Tensor, own_gradients: Tensor) -> Tensor:
    """The weight of each candidate in each upload; the attacker's own samples stand for what is no candidate."""
    known = torch.cat([gradients, own_gradients]).double()
    sizes = known.norm(dim=1, keepdim=True).clamp_min(SMALLEST)
    unit = known / sizes
    matrix = unit @ unit.T + 1e-6 * torch.eye(len(unit), dtype=unit.dtype)
    weights: Tensor = torch.linalg.solve(matrix, unit @ uploads.double().T) / sizes
    return weights[: len(gradients)].T


def match_rows(rows: Tensor, candidates: Tensor) -> Tensor:
    """How near each candidate's softmax comes to one of the rows that were read: minus the log of the distance."""
    nearest = torch.cdist(candidates.double(), rows.double()).min(1).values
    return -nearest.clamp_min(SMALLEST).log()


def _fix_statistics(network: nn.Module, inputs: Tensor) -> None:
    """Evaluation mode; BatchNorm with the statistics of the attacker's own samples, near those of a batch."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            network.train()(inputs)
    network.eval()
