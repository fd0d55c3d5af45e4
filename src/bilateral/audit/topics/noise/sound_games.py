"""Games against sound distributed noise (protocols/noise/sound.py): clipped units under the clients' Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bilateral.audit.epsilon_bound import largest_bound, num_trials_to_show
from bilateral.audit.experiment import Context
from bilateral.audit.one_run_bound import canaries_to_show, largest_one_run_bound
from bilateral.audit.topics.noise import neighbouring_worlds as worlds
from bilateral.audit.topics.noise.attacks.distinguishing import gaussian_log_ratio, projection, sampled_log_ratio
from bilateral.audit.topics.noise.noise_game import Game, Outcome
from bilateral.audit.views import AdversaryName
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.sound.sides import SoundNoise, num_terms, sound_noise, sound_sides
from bilateral.protocols.noise.accounting import spent
from bilateral.randomness import SeededRandomness

MARGIN = 0.7
"""Beyond a claimed epsilon, that an attacker who is never wrong must be able to show."""
FEWEST_CANARIES = 64


@dataclass(frozen=True)
class _SoundGame:
    """Units of norm `moved` (after clipping) under the plan's noise, in the sums of `num_rounds` rounds.

    The norm is divided evenly between the terms. With `first_term_only` the attacker looks at nothing else.
    """

    noise: SoundNoise
    num_terms: int
    num_clients: int
    """Whose noise the attacker does not know."""
    num_rounds: int
    num_trials: int
    moved: float
    randomness: SeededRandomness
    first_term_only: bool = False
    on_round: Callable[[int], None] = lambda _: None

    def __call__(self, fraction: float) -> Outcome:
        plan = self.noise.settings
        # The noisy count of adaptive clipping is left out; what it leaves to the terms is not.
        settings = replace(plan, adaptive=None, noise_multiplier=fraction * plan.terms_multiplier)
        rate = self.noise.spending.exposure.sampling_rate
        shift = self.moved / math.sqrt(self.num_terms) / settings.clip.scales(self.num_terms)
        deviations = torch.tensor(settings.term_deviations(self.num_terms)).double() * math.sqrt(self.num_clients)
        scores = [torch.zeros(self.num_trials, dtype=torch.float64) for _ in range(2)]
        for number in range(self.num_rounds):
            draws = self.randomness.child("round", number, str(fraction))
            noise = worlds.sound_noise_of(settings, self.num_terms, self.num_clients, self.num_trials, number, draws)
            used = (draws.child("sampling").uniform(self.num_trials) < rate).double()
            for world, present in enumerate((used, 0.0 * used)):
                residual = noise + shift[:, None] * present
                if self.first_term_only:
                    scores[world] += projection(residual[:1], shift[:1])
                else:
                    scores[world] += sampled_log_ratio(gaussian_log_ratio(residual, shift, deviations), rate)
            self.on_round(number)
        return scores[0], scores[1]


def sound_games(context: Context, around: Groundwork) -> list[Game]:
    """Worst cases, a canary through the real clipping, and all rounds of a run together."""
    noise = sound_noise(around)
    found = {"noise.epsilon": None, "noise.noise_multiplier": noise.settings.noise_multiplier}
    layer = sound_sides(replace(around, plan=context.plan.with_settings(found)))  # without the search for the noise
    row, exposure = noise.spending.rows[0], noise.spending.exposure
    clip, terms = noise.settings.clip, num_terms(around)
    federation, rounds = context.federation(), exposure.rounds_of_one_client
    honest, everybody = noise.settings.min_honest, around.num_participants
    half = layer.make_client(worlds.first_seat(around)).half
    moved = worlds.clipped_difference(around, federation, half, layer.make_server(around.model), clip)
    many, draws = context.effort.noise_trials, context.randomness("sound")
    wanted = num_trials_to_show(row.epsilon + 0.3, row.delta)
    affordable = int(context.effort.noise_draws / (rounds * terms * honest))
    composed = max(1_000, min(max(2 * wanted, 20_000), affordable, many))

    def progress(number: int) -> None:
        context.on_progress(0.3 + 0.3 * number / rounds, "composing rounds")

    def game(clients: int, num_rounds: int, trials: int, norm: float, label: str, **options: bool) -> _SoundGame:
        return _SoundGame(
            noise, terms, clients, num_rounds, trials, norm, draws.child(label), on_round=progress, **options
        )

    worst = f"one {clip.unit} at the clipping norm"
    known = f"the sums, and the noise of the {everybody - honest} clients that dropped out or collude"
    server: AdversaryName = "curious server"
    pooled: AdversaryName = "server with colluding clients"
    return [
        Game(
            "projection of the first term, one round",
            False,
            server,
            "the first term of the sum",
            worst,
            row.epsilon_per_round,
            game(everybody, 1, many, clip.sensitivity, "naive", first_term_only=True),
        ),
        Game(
            "likelihood ratio of all terms, one round",
            True,
            pooled,
            known,
            worst,
            row.epsilon_per_round,
            game(honest, 1, many, clip.sensitivity, "worst"),
            curve=True,
        ),
        Game(
            "likelihood ratio of all terms, a canary through the real clipping, one round",
            True,
            pooled,
            known,
            f"a {clip.unit} with inputs {worlds.CANARY_SIZE:g} times too large",
            row.epsilon_per_round,
            game(honest, 1, many, moved, "canary"),
            remark=f"it moves the sum by {moved / clip.sensitivity:.4g} of the clipping norm",
        ),
        Game(
            f"likelihood ratio of all terms, {rounds} rounds together",
            True,
            pooled,
            known,
            worst,
            row.epsilon,
            game(honest, rounds, composed, clip.sensitivity, "composed"),
            remark=f"{composed} trials show at most {largest_bound(composed, row.delta):.2f}",
        ),
    ]


def one_run_of_sound_noise(context: Context, around: Groundwork) -> list[Game]:
    """All rounds of one run, in which each canary has a coordinate to itself and moves it by the clipping norm.

    One run cannot show a large epsilon (delta costs more than canaries add): then so many rounds as claim less, by the
    accounting that made the claim.
    """
    noise = sound_noise(around)
    exposure, terms, honest = noise.spending.exposure, num_terms(around), noise.settings.min_honest
    rate, delta, most = exposure.sampling_rate, noise.settings.delta, context.effort.canaries
    rounds, epsilon = exposure.rounds_of_one_client, noise.spending.rows[0].epsilon
    showable = largest_one_run_bound(canaries_to_show(math.inf, delta, most), delta)
    while rounds > 1 and epsilon + MARGIN > showable:
        rounds //= 2
        epsilon = spent(noise.spending.effective_multiplier, rate, rounds, delta).epsilon
    affordable = int(context.effort.noise_draws / (rounds * terms * around.num_participants))
    seen = 1 - (1 - rate) ** rounds  # of the canaries that are in, so many are in a batch
    count = max(FEWEST_CANARIES, min(canaries_to_show(epsilon + MARGIN, delta, most, seen=seen), affordable))
    draws, unit = context.randomness("one run, sound"), f"{noise.settings.clip.unit}s at the clipping norm"

    def progress(number: int) -> None:
        context.on_progress(number / rounds, "one run with canaries")

    def game(clients: int, label: str, **options: bool) -> _SoundGame:
        moved = noise.settings.clip.sensitivity
        return _SoundGame(noise, terms, clients, rounds, count, moved, draws.child(label), on_round=progress, **options)

    shared = f"{count} {unit}, each on a coordinate of its own"
    remark = f"{rounds} of {exposure.rounds_of_one_client} rounds, a canary in a batch with probability {rate:.3g}"
    return [
        Game(
            "one run with canaries, projection of the first term",
            False,
            "curious server",
            "the first term of the sums",
            shared,
            epsilon,
            game(around.num_participants, "naive", first_term_only=True),
            remark,
        ),
        Game(
            "one run with canaries, likelihood ratio of all terms",
            True,
            "server with colluding clients",
            f"the sums, and the noise of the {around.num_participants - honest} clients that dropped out or collude",
            shared,
            epsilon,
            game(honest, "adaptive"),
            remark,
            curve=True,
        ),
    ]
