"""Games against P2's noise and its two ablations, one round at a time, as P2 counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.epsilon_bound import num_trials_to_show
from bilateral.audit.experiment import Context
from bilateral.audit.one_run_bound import canaries_to_show
from bilateral.audit.topics.noise import neighbouring_worlds as worlds
from bilateral.audit.topics.noise.attacks.distinguishing import (
    gaussian_log_ratio,
    outside_support,
    uniform_sum_log_ratio,
)
from bilateral.audit.topics.noise.noise_game import Game, Outcome, Play
from bilateral.audit.topics.noise.sound_games import MARGIN
from bilateral.audit.views import AdversaryName
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.mp_cdp.sides import mp_cdp_sides
from bilateral.protections.mp_dp_naive.sides import mp_dp_naive_sides
from bilateral.protections.published.claims import sensitivity
from bilateral.protections.published.sides import published_sides
from bilateral.protections.sides import Sides
from bilateral.protocols.noise.published_model import PublishedModel
from bilateral.randomness import SeededRandomness


@dataclass(frozen=True)
class _PublishedGame:
    """One weight's true gradient moves by `moved`; `ratios` are what the server knows of each trial's round."""

    ratios: Tensor
    sigma: float
    num_clients: int
    moved: float
    score: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """Of (residual, shift) in the perturbed coordinates, the ratio, and half the width of one client's noise."""
    randomness: SeededRandomness

    def __call__(self, fraction: float) -> Outcome:
        sigma, count = fraction * self.sigma, len(self.ratios)
        noise = worlds.uniform_sum(sigma, self.num_clients, count, self.randomness.child(str(fraction)))
        shift, width = self.moved / self.ratios, math.sqrt(2.0) * sigma
        return (
            self.score(noise + shift, shift, self.ratios, width),
            self.score(noise, shift, self.ratios, width),
        )


def published_games(context: Context, around: Groundwork) -> list[Game]:
    """Gradients that keep to the assumed norm, by four attackers; and an honest one that does not."""
    epsilon, sigma = _claimed(around, published_sides, "independent")
    model = PublishedModel.of(around.model, around.graph, around.problem.examples[:2])
    clients, moved = around.num_participants, sensitivity(around)
    effort, draws = context.effort, context.randomness("published")
    wanted = max(effort.trials, num_trials_to_show(epsilon + 0.7, context.plan.noise.delta))
    rounds = worlds.published_draws(
        model,
        min(wanted, effort.factor_rounds),
        draws.child("factors"),
        lambda done: context.on_progress(0.3 * done, "drawing P2's scale factors"),
    )

    def naive(residual: Tensor, shift: Tensor, ratio: Tensor, width: float) -> Tensor:  # noqa: ARG001
        return ratio * residual

    def support(residual: Tensor, shift: Tensor, ratio: Tensor, width: float) -> Tensor:  # noqa: ARG001
        return outside_support(residual, shift, clients * width)

    def exact(residual: Tensor, shift: Tensor, ratio: Tensor, width: float) -> Tensor:  # noqa: ARG001
        return uniform_sum_log_ratio(residual, shift, width, clients)

    server: AdversaryName = "curious server"
    one = "one weight's true gradient moves by the assumed norm"
    quiet = f"{one}, at the round's quietest weight"
    known = "the recovered sum and the server's own scale factors"
    per_round = "one round, as P2 counts; given the scale factors, the claim must hold for every neighbour"

    def game(ratios: Tensor, score: Callable[[Tensor, Tensor, Tensor, float], Tensor], label: str) -> _PublishedGame:
        return _PublishedGame(ratios, sigma, clients, moved, score, draws.child(label))

    games = [
        Game("projection", False, server, "the recovered sum", one, epsilon, game(rounds.beforehand, naive, "naive")),
        Game(
            "values outside the noise's support",
            True,
            server,
            known,
            quiet,
            epsilon,
            game(rounds.quietest, support, "support"),
            per_round,
        ),
        Game(
            "exact likelihood ratio",
            True,
            server,
            known,
            quiet,
            epsilon,
            game(rounds.quietest, exact, "exact"),
            per_round,
            curve=True,
        ),
        Game(
            "exact likelihood ratio, a weight chosen beforehand",
            True,
            server,
            known,
            one,
            epsilon,
            game(rounds.beforehand, exact, "beforehand"),
            "one round, as P2 counts; the neighbours are fixed before the factors are drawn",
        ),
    ]
    return [*games, _honest_published(context, around, model, sigma, epsilon)]


def _honest_published(
    context: Context, around: Groundwork, model: PublishedModel, sigma: float, epsilon: float
) -> Game:
    """One honest sample or client is another: all weights together, every trial with factors of its own."""
    first, second = worlds.honest_batches(around, context.federation())
    gradient = worlds.true_gradient(around, second) - worlds.true_gradient(around, first)
    whole = worlds.whole_weights(model)
    difference, clients = gradient[model.original_place[whole]], around.num_participants
    draws, count = context.randomness("published", "honest"), _num_honest(context, epsilon)

    def play(fraction: float) -> Outcome:
        scores = torch.empty(2, count, dtype=torch.float64)
        for number in range(count):
            own = draws.child(str(fraction), number)
            shift = difference / worlds.ratio_of_round(model, own.child("factors"))[whole]
            noise = worlds.uniform_sum(fraction * sigma, clients, len(whole), own)
            # Only weights whose shift is not lost in the noise say something; the others would cost the same time.
            loud = shift.abs().topk(min(2_000, len(shift))).indices
            for world, present in enumerate((1.0, 0.0)):
                residual, moved = noise[loud] + present * shift[loud], shift[loud]
                ratio = uniform_sum_log_ratio(residual, moved, math.sqrt(2.0) * fraction * sigma, clients)
                scores[world, number] = _finite_sum(ratio)
            if number % 50 == 0:
                context.on_progress(0.8 + 0.2 * number / count, "an honest sample in P2's noise")
        return scores[0], scores[1]

    return Game(
        "exact likelihood ratio, an honest gradient that nobody clips",
        True,
        "curious server",
        "the recovered sum and the server's own scale factors",
        f"one honest {context.plan.noise.unit} is replaced by another",
        epsilon,
        play,
        f"it moves the gradient by {float(gradient.norm()) / sensitivity(around):.3g} times the assumed norm",
    )


def _num_honest(context: Context, epsilon: float) -> int:
    """Trials with all weights are dear: as many as it takes, up to a limit."""
    wanted = num_trials_to_show(epsilon + 0.3, context.plan.noise.delta)
    return min(max(wanted, context.effort.trials // 5), 2 * context.effort.trials)


def _finite_sum(log_ratios: Tensor) -> float:
    """The sum, where impossible in one world beats everything else (both at once is rounding, and says nothing)."""
    high, low = bool(torch.isposinf(log_ratios).any()), bool(torch.isneginf(log_ratios).any())
    if high != low:
        return math.inf if high else -math.inf
    return float(log_ratios[torch.isfinite(log_ratios)].sum())


def _gaussian_play(noise_of: Callable[[float], Tensor], sigma: float, moved: float) -> Play:
    """A unit that moves Gaussian noise by `moved`, by the best test there is."""

    def play(fraction: float) -> Outcome:
        noise = noise_of(fraction * sigma)[None]
        shift, deviation = torch.tensor([moved]).double(), torch.tensor([fraction * sigma]).double()
        inside, outside = (gaussian_log_ratio(noise + present * moved, shift, deviation) for present in (1.0, 0.0))
        return inside, outside

    return play


def naive_games(context: Context, around: Groundwork) -> list[Game]:
    """Every upload is seen by itself; its first term carries normal noise in the *perturbed* coordinates."""
    epsilon, sigma = _claimed(around, mp_dp_naive_sides, "local")
    first, second = worlds.honest_batches(around, context.federation())
    assumed, many = sensitivity(around), context.effort.noise_trials
    difference = (worlds.perturbed_upload(around, second).terms - worlds.perturbed_upload(around, first).terms)[0]
    moved, draws = float(difference.double().norm()), context.randomness("local")

    def noise_of(deviation: float) -> Tensor:
        return worlds.local_noise(around, first, deviation, many, draws.child(str(deviation)))

    shrunk = assumed / worlds.smallest_ratio(around)
    seen = "the first term of one upload"
    unit = context.plan.noise.unit
    within = "the perturbed gradient moves by the assumed norm, as the claim says"
    beyond = "the true gradient moves by the assumed norm, at the weight that is perturbed most"
    honest = f"one honest {unit} is replaced by another, and nobody clips"
    return [
        _gaussian_game("projection", False, seen, within, epsilon, noise_of, sigma, assumed),
        _gaussian_game("likelihood ratio", True, seen, within, epsilon, noise_of, sigma, assumed),
        _gaussian_game("likelihood ratio, known factors", True, seen, beyond, epsilon, noise_of, sigma, shrunk),
        _gaussian_game("likelihood ratio, an honest gradient", True, seen, honest, epsilon, noise_of, sigma, moved),
    ]


def central_games(context: Context, around: Groundwork) -> list[Game]:
    """The server is trusted; others see the mean gradient with its noise, at best."""
    epsilon, sigma = _claimed(around, mp_cdp_sides, "central")
    first, second = worlds.honest_batches(around, context.federation())
    many, draws, clients = context.effort.noise_trials, context.randomness("central"), around.num_participants
    moved = float((worlds.true_gradient(around, second) - worlds.true_gradient(around, first)).norm()) / clients

    def noise_of(deviation: float) -> Tensor:
        return worlds.central_noise(around, deviation, many, draws.child(str(deviation)))

    assumed, seen = sensitivity(around) / clients, "the released mean gradient"
    within = "a client's true gradient moves by the assumed norm"
    honest = f"one honest {context.plan.noise.unit} is replaced by another, and nobody clips"
    return [
        _gaussian_game("likelihood ratio", True, seen, within, epsilon, noise_of, sigma, assumed, "curious client"),
        _gaussian_game(
            "likelihood ratio, an honest gradient",
            True,
            seen,
            honest,
            epsilon,
            noise_of,
            sigma,
            moved,
            "curious client",
        ),
    ]


def _gaussian_game(
    attack: str,
    adaptive: bool,
    seen: str,
    unit: str,
    epsilon: float,
    noise_of: Callable[[float], Tensor],
    sigma: float,
    moved: float,
    adversary: AdversaryName = "curious server",
) -> Game:
    remark = f"one round, as P2 counts; it moves by {moved / sigma:.3g} deviations of the noise"
    return Game(attack, adaptive, adversary, seen, unit, epsilon, _gaussian_play(noise_of, sigma, moved), remark)


def _claimed(around: Groundwork, make_sides: Callable[[Groundwork], Sides], noise: str) -> tuple[float, float]:
    """The plan's epsilon a round, and the deviation of its noise."""
    report = make_sides(around).privacy
    assert report is not None
    return report.rows[0].epsilon_per_round, report.deviations[noise]


def one_run_of_published_noise(context: Context, around: Groundwork) -> list[Game]:
    """One round, as P2 counts; canaries are weights whose true gradient moves by the assumed norm.

    Given the scale factors, the claim must hold for every neighbour: canaries are the round's quietest weights.
    """
    epsilon, sigma = _claimed(around, published_sides, "independent")
    model = PublishedModel.of(around.model, around.graph, around.problem.examples[:2])
    draws, clients = context.randomness("one run, published"), around.num_participants
    ratios = worlds.ratio_of_round(model, draws.child("factors"))[worlds.whole_weights(model)]
    ratios = ratios[ratios.abs().argsort()[: _num_canaries(context, epsilon)]]

    def naive(residual: Tensor, shift: Tensor, ratio: Tensor, width: float) -> Tensor:  # noqa: ARG001
        return ratio * residual

    def exact(residual: Tensor, shift: Tensor, ratio: Tensor, width: float) -> Tensor:  # noqa: ARG001
        return uniform_sum_log_ratio(residual, shift, width, clients)

    unit = f"the {len(ratios)} quietest weights, whose true gradient moves by the assumed norm or not"
    found = []
    for attack, seen, score in (
        ("projection", "the recovered sum", naive),
        ("exact likelihood ratio", "the recovered sum and the server's own scale factors", exact),
    ):
        play = _PublishedGame(ratios, sigma, clients, sensitivity(around), score, draws.child(attack))
        name, adaptive = f"one round with canaries, {attack}", score is exact
        found.append(Game(name, adaptive, "curious server", seen, unit, epsilon, play, curve=adaptive))
    return found


def one_run_of_local_noise(context: Context, around: Groundwork) -> list[Game]:
    """MP-DP-Naive: the noise is on what is perturbed, and the claim on what is true."""
    epsilon, sigma = _claimed(around, mp_dp_naive_sides, "local")
    first, _ = worlds.honest_batches(around, context.federation())
    count, draws = _num_canaries(context, epsilon), context.randomness("one run, local")

    def noise_of(deviation: float) -> Tensor:
        return worlds.local_noise(around, first, deviation, count, draws.child(str(deviation)))

    assumed, seen = sensitivity(around), f"{count} coordinates of one client's first terms"
    shrunk, name = assumed / worlds.smallest_ratio(around), "one run with canaries, likelihood ratio"
    within = "the perturbed gradient moves by the assumed norm, or not"
    beyond = "the true gradient moves by the assumed norm, or not, at the weight that is perturbed most"
    return [
        _gaussian_game(name, True, seen, within, epsilon, noise_of, sigma, assumed),
        _gaussian_game(f"{name}, known factors", True, seen, beyond, epsilon, noise_of, sigma, shrunk),
    ]


def one_run_of_central_noise(context: Context, around: Groundwork) -> list[Game]:
    """MP-CDP, as whoever sees models has it."""
    epsilon, sigma = _claimed(around, mp_cdp_sides, "central")
    count, draws = _num_canaries(context, epsilon), context.randomness("one run, central")

    def noise_of(deviation: float) -> Tensor:
        return worlds.central_noise(around, deviation, count, draws.child(str(deviation)))

    assumed = sensitivity(around) / around.num_participants
    unit, seen = (
        "a client's true gradient moves by the assumed norm, or not",
        f"{count} coordinates of the mean gradient",
    )
    name = "one run with canaries, likelihood ratio"
    return [_gaussian_game(name, True, seen, unit, epsilon, noise_of, sigma, assumed, "curious client")]


def _num_canaries(context: Context, epsilon: float) -> int:
    return canaries_to_show(epsilon + MARGIN, context.plan.noise.delta, context.effort.canaries)
