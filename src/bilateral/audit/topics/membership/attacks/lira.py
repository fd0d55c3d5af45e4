"""LiRA, the likelihood ratio attack (Carlini et al. 2022): what would a model say if it had seen this sample, if not?

1. `balanced_assignment`: which candidates each shadow model is trained on
2. `train_shadows`: models of the plan's architecture, trained by the attacker on its own samples and on those
3. `online_scores`: the likelihood ratio of "in" and "out"; `offline_scores`: how unlikely "out" is, if the attacker had
   no time to train with the candidates

Perturbation is exact, so an attacker needs no protocol to train like the victims: plain training gives the same models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.topics.membership.attacks.membership import confidence
from bilateral.audit.views import Facts
from bilateral.data import Split
from bilateral.models.zoo import build_model
from bilateral.randomness import Randomness

SMALLEST_SPREAD = 1e-3


@dataclass(frozen=True, eq=False)
class Shadows:
    """What shadow models say of the candidates: `confidences` and `inside` are shadows x candidates.

    `population`: what they say of samples that none of them was trained on (shadows x samples), for `rmia`.
    """

    confidences: Tensor
    inside: Tensor
    population: Tensor = field(default_factory=lambda: torch.empty(0))


def balanced_assignment(num_candidates: int, num_shadows: int, share: float, randomness: Randomness) -> Tensor:
    """shadows x candidates, true where trained on: every candidate in `share` of the shadows, as nearly as it goes.

    At least one has it and one has not.
    """
    if num_shadows < 2:
        raise ValueError(f"one shadow with a sample and one without are needed, got {num_shadows}")
    count = min(num_shadows - 1, max(1, round(share * num_shadows)))
    # Consecutive rows from a random start: rows get as many candidates as each other, too.
    start = torch.arange(num_candidates)[randomness.permutation(num_candidates)] * count
    rows = (start[None, :] + torch.arange(count)[:, None]) % num_shadows
    return torch.zeros(num_shadows, num_candidates, dtype=torch.bool).scatter_(0, rows, True)


def train_plainly(facts: Facts, samples: Split, seed: int) -> nn.Module:
    """A model of the plan's kind, trained as the plan says with all samples in each round; the seed is the attacker's.

    Without a federation the gradient over all samples is what the sum of the clients' would be.
    """
    training = facts.plan.training
    network = build_model(
        facts.plan.model.name,
        input_shape=facts.input_shape,
        num_outputs=facts.num_outputs,
        seed=seed,
        **facts.plan.model.options,
    ).to(samples.inputs.dtype)
    settings = training.optimiser_settings()
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimiser: torch.optim.Optimizer
    if settings.name == "adam":
        optimiser = torch.optim.Adam(parameters, weight_decay=settings.weight_decay)
    else:
        optimiser = torch.optim.SGD(parameters, lr=1.0, momentum=settings.momentum, weight_decay=settings.weight_decay)
    lossy = F.mse_loss if samples.targets.is_floating_point() else F.cross_entropy
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for round_index in range(training.rounds):
            optimiser.param_groups[0]["lr"] = settings.rate(round_index, training.rounds)
            optimiser.zero_grad()
            lossy(network(samples.inputs), samples.targets).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return network.eval()


def train_shadows(
    facts: Facts,
    always: Split,
    candidates: Split,
    inside: Tensor,
    randomness: Randomness,
    on_shadow: Callable[[int], None] = lambda _: None,
    population: Split | None = None,
) -> Shadows:
    """Shadow models on `always` (the attacker's own samples) and on the candidates that each is given.

    `population`: samples that they are asked about, and not trained on.
    """
    rows, others = [], []
    for number, given in enumerate(inside):
        on_shadow(number)
        chosen = joined(always, candidates.subset(given.nonzero()[:, 0]))
        network = train_plainly(facts, chosen, randomness.child("shadow", number).integer_below(2**31))
        with torch.no_grad():
            rows.append(confidence(network(candidates.inputs), candidates.targets))
            if population is not None:
                others.append(confidence(network(population.inputs), population.targets))
    return Shadows(torch.stack(rows), inside, torch.stack(others) if others else torch.empty(0))


def online_scores(observed: Tensor, shadows: Shadows) -> Tensor:
    """log p(observed | in) - log p(observed | out), normal for each candidate.

    A few shadows give each candidate a mean of its own, and one variance for all.
    """
    inside, outside = _fitted(shadows, shadows.inside), _fitted(shadows, ~shadows.inside)
    return _log_density(observed, *inside) - _log_density(observed, *outside)


def offline_scores(observed: Tensor, shadows: Shadows) -> Tensor:
    """How far above the "out" models the observed confidence is, in standard deviations."""
    mean, spread = _fitted(shadows, ~shadows.inside)
    return (observed - mean) / spread


def joined(*parts: Split) -> Split:
    return Split(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))


def _fitted(shadows: Shadows, used: Tensor) -> tuple[Tensor, Tensor]:
    """A mean a candidate, and the spread around the means, pooled."""
    count = used.sum(0)
    mean = torch.where(used, shadows.confidences, 0.0).sum(0) / count
    squares = torch.where(used, (shadows.confidences - mean).square(), 0.0).sum()
    freedom = int(count.sum()) - used.shape[1]
    if freedom <= 0:  # one shadow a candidate: the spread of the means is the best there is
        return mean, mean.std().clamp_min(SMALLEST_SPREAD)
    return mean, (squares / freedom).sqrt().clamp_min(SMALLEST_SPREAD)


def _log_density(value: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    return -0.5 * ((value - mean) / spread).square() - spread.log()
