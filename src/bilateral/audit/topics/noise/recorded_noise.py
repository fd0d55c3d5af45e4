"""Differential privacy, checked on the noise that a run really had: enough of it, never twice, Gaussian, and sampled.

The games of `distinguishing_game` draw noise themselves; here the real parties run, and an attacker that knows all data
takes them off what the server unmasked (`noise_of_a_run`). What it finds is turned into the epsilon that is left, by
the accounting that made the claim:

| reading               | what it finds                                  | epsilon of                           |
|-----------------------|------------------------------------------------|--------------------------------------|
| size, sums and single | the part with the least noise                  | that much noise                      |
| reuse, the same       | noise of one place that is in another          | what is left for who knows the other |
| shape                 | atoms, gaps, ends                              | one round, whatever the noise is     |
| count                 | the noise on the count of adaptive clipping    | terms and count together             |
| sampling              | batches that are too large, or can be foretold | that rate                            |

Only what favours the attacker counts: more noise than was claimed is no break. Positive control: the same reading of
noise that was spoilt on purpose. Negative control: independent normal numbers, or coins, as claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bilateral.audit.epsilon_bound import epsilon_lower_bound
from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment
from bilateral.audit.scores import EPSILON_BOUND, Scores
from bilateral.audit.topics.noise.attacks.batch_sampling import Sampling, sampling_limits
from bilateral.audit.topics.noise.attacks.noise_residuals import (
    deviation_limit,
    least_deviation,
    most_alike,
    shape_scores,
)
from bilateral.audit.topics.noise.neighbouring_worlds import groundwork_of
from bilateral.audit.topics.noise.noise_of_a_run import RunNoise, noise_of_run, short_plan
from bilateral.audit.views import AdversaryName
from bilateral.engine.plan import RunPlan
from bilateral.protections.sound.sides import SoundNoise, num_terms, sound_noise
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.noise.accounting import spent

RISK = 1e-3
"""That noise as claimed is called too little by one reading."""
LEAST = 0.5
"""Of the claimed deviation: with less, epsilon is at least that of half the noise (more takes long to account for)."""
MOST = 1.1
"""More noise than this is not accounted for: it is no break."""
MOST_TRIALS = 400_000
CURIOUS: AdversaryName = "curious server"
POOLED: AdversaryName = "server with colluding clients"
Reading = Callable[[Tensor], tuple[float, str]]
"""From residuals to the epsilon that they imply, and what was found, in words."""


@dataclass(frozen=True)
class _Claim:
    """What was claimed, and what it would be with less noise, or more sampling."""

    noise: SoundNoise

    @property
    def epsilon(self) -> float:
        return self.noise.spending.rows[0].epsilon

    @property
    def rate(self) -> float:
        return self.noise.spending.exposure.sampling_rate

    def multiplier(self, terms: float = 1.0, count: float = 1.0) -> float:
        """z, with these shares of the claimed deviation on the terms, and on the count of adaptive clipping."""
        settings = self.noise.settings
        paid = self.noise.spending.effective_multiplier**-2
        paid += settings.terms_multiplier**-2 * (_rounded_up(terms) ** -2 - 1)
        if settings.adaptive is not None:
            paid += (2 * settings.adaptive.count_noise) ** -2 * (_rounded_up(count) ** -2 - 1)
        return float(paid**-0.5)

    def implied(self, terms: float = 1.0, count: float = 1.0, rate: float | None = None) -> float:
        rounds = self.noise.spending.exposure.rounds_of_one_client
        rate = self.rate if rate is None else rate
        return _epsilon(self.multiplier(terms, count), rate, rounds, self.noise.settings.delta)

    def of_one_use(self) -> float:
        """Of one round, for a unit that is in its batch."""
        return _epsilon(self.multiplier(), 1.0, 1, self.noise.settings.delta)


@cache
def _epsilon(multiplier: float, rate: float, rounds: int, delta: float) -> float:
    return spent(multiplier, rate, rounds, delta).epsilon


def _rounded_up(share: float) -> float:
    """To a thousandth, in favour of the claim: so that many readings need little accounting."""
    return min(max(math.ceil(1000 * share - 1e-9) / 1000, LEAST), MOST)


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if plan.traits.spends_budget else "the plan claims no differential privacy of its own"


def _run(context: Context) -> Sequence[Evidence]:
    around = groundwork_of(context)
    claim = _Claim(sound_noise(around))
    numbers = num_terms(around) * around.graph.num_parameters
    plan = short_plan(context, claim.noise.settings, around.num_participants, numbers)
    found = noise_of_run(context, plan, lambda done: context.on_progress(0.1 + 0.6 * done, "taking data off the sums"))
    evidence: list[Evidence] = []
    for one in _rows(context, claim, found):
        evidence.append(one)
        context.on_progress(0.7 + 0.04 * len(evidence), one.attack)
    context.on_progress(1.0, "noise read")
    return evidence


def _rows(context: Context, claim: _Claim, found: RunNoise) -> Iterator[Evidence]:
    rounds, bound = len(found.sums), claim.epsilon
    sums, singles = f"the sums of {rounds} rounds, and all data", f"the noise of single clients in {rounds} rounds"
    if found.mismatch > 1e-3:
        singles += f"; added up it is not the noise of the recorded sums, but {found.mismatch:.2g} deviations off"
    for name, values, seen, adversary, owners in (
        ("in the sums", found.sums, sums, CURIOUS, ("",) * rounds),
        ("of single clients", found.singles, singles, POOLED, found.owners),
    ):
        control = _as_claimed(context, name, values)
        size = _size(claim, owners, found.layers)
        yield _row(
            f"size of the noise {name}", adversary, seen, bound, size, values, ("half the noise", 0.5 * values), control
        )
        again = torch.cat([values[:1], values[:1], values[2:]])
        yield _row(
            f"noise {name} that is used again",
            adversary,
            seen,
            bound,
            _reuse(claim),
            values,
            ("the first upload's noise in the second", again),
            control,
        )
    yield _shape_row(context, claim, found)
    if len(found.count_singles):
        counts = torch.cat([found.count_sums, found.count_singles])
        reading, control = _count(claim, len(found.count_sums)), _as_claimed(context, "count", counts)
        spoilt = ("a tenth of the noise", 0.1 * counts)
        yield _row("size of the noise on the count", POOLED, singles, bound, reading, counts, spoilt, control)
    if claim.noise.settings.clip.unit == "sample" and claim.rate < 1:
        yield _sampling_row(context, claim, found)


def _as_claimed(context: Context, name: str, values: Tensor) -> Tensor:
    return context.randomness("noise as claimed", name).normal(*values.shape)


def _size(claim: _Claim, owners: Sequence[str], layers: Sequence[tuple[int, int]]) -> Reading:
    def read(values: Tensor) -> tuple[float, str]:
        least = least_deviation(values, owners, layers, RISK)
        return claim.implied(
            least.deviation
        ), f"least at {least.where}: at most {least.deviation:.3f} of what is claimed"

    return read


def _reuse(claim: _Claim) -> Reading:
    def read(values: Tensor) -> tuple[float, str]:
        alike = most_alike(values, RISK)
        said = f"correlation at least {alike.correlation:.2g} ({alike.where})" if alike.correlation else "none found"
        return claim.implied(alike.remaining), said

    return read


def _count(claim: _Claim, num_sums: int) -> Reading:
    """Sums and single counts by themselves; the lesser of both counts."""

    def read(values: Tensor) -> tuple[float, str]:
        parts = [part for part in (values[:num_sums], values[num_sums:]) if len(part)]
        limits = [float(deviation_limit(part.square().sum(), len(part), RISK / len(parts))) for part in parts]
        return claim.implied(count=min(limits)), f"at most {min(limits):.3f} of what is claimed"

    return read


def _shape_row(context: Context, claim: _Claim, found: RunNoise) -> Evidence:
    """One coordinate moved by the whole clipping norm, under the noise of the fewest clients that the claim needs."""
    flat = found.honest_sums.flatten()
    chosen = context.randomness("shape").permutation(len(flat))[:MOST_TRIALS]
    values, delta = flat[chosen], claim.noise.settings.delta

    def read(values: Tensor) -> tuple[float, str]:
        inside, outside = shape_scores(values, 1 / claim.multiplier())
        bound = epsilon_lower_bound(inside.numpy(), outside.numpy(), delta, 1 - RISK)
        return bound.epsilon, f"{len(inside)} trials, for a unit that is in the batch"

    bare = values.clone()
    bare[::4] = 0.0
    honest = claim.noise.settings.min_honest
    return _row(
        "shape of the noise, one round",
        POOLED,
        f"the noise of {honest} clients, learnt on half of its coordinates",
        claim.of_one_use(),
        read,
        values,
        ("a quarter of the coordinates without noise", bare),
        _as_claimed(context, "shape", values),
    )


def _sampling_row(context: Context, claim: _Claim, found: RunNoise) -> Evidence:
    size = claim.noise.settings.clip.expected_batch_size
    rates = {name: min(1.0, size / len(used)) for (name, _), used in found.used.items()}
    draws = context.randomness("coins as claimed")
    coins = {key: draws.child(*key).uniform(len(used)) < rates[key[0]] for key, used in found.used.items()}

    def read(used: dict[tuple[str, int], Tensor]) -> tuple[float, str]:
        limits: Sampling = sampling_limits(used, rates, RISK)
        said = f"a rate of {limits.rate:.3f} at least, {claim.rate:.3f} claimed"
        said += f"; {limits.known:.0%} of a coin can be foretold" if limits.known else ""
        rate = math.floor(1000 * limits.implied_rate(claim.rate)) / 1000
        return claim.implied(rate=max(rate, claim.rate / 2)), said

    every = {key: torch.ones_like(used) for key, used in found.used.items()}
    epsilon, said = read(found.used)
    return _evidence(
        "sampling of the batches",
        CURIOUS,
        f"which samples were used in {len(found.sums)} rounds",
        claim.epsilon,
        (epsilon, read(every)[0], read(coins)[0]),
        "every sample in every batch",
        said,
    )


def _row(
    attack: str,
    adversary: AdversaryName,
    seen: str,
    bound: float,
    read: Reading,
    values: Tensor,
    spoilt: tuple[str, Tensor],
    control: Tensor,
) -> Evidence:
    epsilon, said = read(values)
    return _evidence(attack, adversary, seen, bound, (epsilon, read(spoilt[1])[0], read(control)[0]), spoilt[0], said)


def _evidence(
    attack: str,
    adversary: AdversaryName,
    seen: str,
    bound: float,
    epsilons: tuple[float, float, float],
    spoilt: str,
    said: str,
) -> Evidence:
    target, positive, negative = (Scores(EPSILON_BOUND, (one,), (one, math.inf)) for one in epsilons)
    return with_controls(
        "differential privacy",
        adversary,
        attack,
        seen,
        Gate(EPSILON_BOUND, bound),
        target=Condition("the recorded run of this plan", (target,)),
        positive=Condition(spoilt, (positive,)),
        negative=Condition("independent draws, exactly as claimed", (negative,)),
        paired=False,
        bound=bound,
        remark=said,
    )


EXPERIMENT = Experiment(
    "recorded-noise",
    "Differential privacy: the noise that the real parties added, and the epsilon that it is good for",
    ("differential privacy",),
    _applies,
    _run,
    weight=25.0,
)
