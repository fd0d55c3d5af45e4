"""How much work an audit spends, in one place: what `--effort` means to each experiment.

The same in every condition: a defence must not meet a lazier attacker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bilateral.protocols.perturb.settings import Loss

EffortName = Literal["smoke", "standard", "thorough"]


@dataclass(frozen=True)
class MemorisingEffort:
    """How many members a run of the membership game has at most, and how long a network takes to memorise them."""

    fold: int
    rounds: int
    learning_rate: float


@dataclass(frozen=True)
class InvertingEffort:
    """Of model inversion: runs, what is trained for them, and the search in each of them."""

    runs: int
    fewest_rounds: int
    one_in: int | None
    """A run has one in so many of the plan's rounds, but the fewest at least; None: just those."""
    may_take_all: bool
    """If so few do not learn: the plan's own number of rounds."""
    prior_steps: int
    judge_steps: int
    search_steps: int
    search_restarts: int

    def rounds_of(self, planned: int) -> int:
        """Of a run, where the plan has `planned`."""
        share = 0 if self.one_in is None else -(-planned // self.one_in)
        return min(planned, max(self.fewest_rounds, share))


@dataclass(frozen=True)
class PriorEffort:
    """Of gradient inversion with a generative prior."""

    training_steps: int
    starts: int
    """Of the search in latents; a quarter of them go on."""
    first_steps: int
    latent_steps: int
    feature_steps: int
    """Of the search in each space after the latents."""
    noises: tuple[float, ...]
    """Of the gradients on which it is compared with matching, as shares of their norm."""


@dataclass(frozen=True)
class SharedEffort:
    """Of the experiments on secret-shared prediction."""

    queries: int
    repeats: int
    """How often the adaptive querying party asks the same."""
    examples: int
    """Runs of each world that an attacker plays by itself."""
    trials: int
    """Runs that it is shown afterwards."""
    copies: int
    """Training steps of a copy."""


@dataclass(frozen=True)
class Effort:
    """One of the efforts that an audit can be asked for."""

    name: EffortName
    images: int
    """Images (trials) of a condition in gradient inversion."""
    steps: int
    """Optimisation steps of an attack."""
    restarts: int
    seeds: int
    """Independent runs behind a membership AUC."""
    null_seeds: int
    """Models without members, for the null band."""
    shadows: int
    """Shadow models of LiRA."""
    trials: int
    """Rounds of a distinguishing game."""
    noise_trials: int
    """Of such a game, where trials are coordinates of one upload."""
    noise_draws: float
    """Normal numbers that a composed game may draw."""
    factor_rounds: int
    """Rounds of P2's scheme, each with scale factors of its own."""
    noisy_rounds: int
    """Rounds whose noise is read."""
    swapped_rounds: int
    """Rounds in which two batches are swapped or not."""
    fresh_runs: int
    """So many times more a suspicious row is tried."""
    most_trained_rounds: int | None
    """Of a training whose models are attacked; None: as many as the plan has."""
    canaries: int
    """Of a run whose epsilon is bounded by itself, at most."""
    prior: PriorEffort
    memorising: Mapping[Loss, MemorisingEffort]
    inverting: InvertingEffort
    shared: SharedEffort


_BRIEFLY: Final[Mapping[Loss, MemorisingEffort]] = {
    "ce": MemorisingEffort(60, 60, 0.008),
    "mse": MemorisingEffort(40, 150, 0.006),
}
_FULLY: Final[Mapping[Loss, MemorisingEffort]] = {
    "ce": MemorisingEffort(150, 100, 0.005),
    "mse": MemorisingEffort(80, 200, 0.004),
}
"""Found by plain training on digits; the squared error is memorised more slowly."""
EFFORTS: Final[Mapping[EffortName, Effort]] = {
    "smoke": Effort(
        "smoke",
        images=10,
        steps=40,
        restarts=1,
        seeds=2,
        null_seeds=3,
        shadows=4,
        trials=200,
        noise_trials=20_000,
        noise_draws=3e6,
        factor_rounds=2_000,
        noisy_rounds=6,
        swapped_rounds=20,
        fresh_runs=0,
        most_trained_rounds=20,
        canaries=1_000,
        prior=PriorEffort(150, starts=4, first_steps=10, latent_steps=30, feature_steps=15, noises=()),
        memorising=_BRIEFLY,
        inverting=InvertingEffort(2, 40, None, False, 500, 300, search_steps=60, search_restarts=4),
        shared=SharedEffort(queries=16, repeats=4, examples=16, trials=20, copies=100),
    ),
    "standard": Effort(
        "standard",
        images=20,
        steps=600,
        restarts=1,
        seeds=5,
        null_seeds=10,
        shadows=8,
        trials=2_000,
        noise_trials=200_000,
        noise_draws=2e8,
        factor_rounds=32_768,
        noisy_rounds=30,
        swapped_rounds=40,
        fresh_runs=3,
        most_trained_rounds=None,
        canaries=4_000,
        prior=PriorEffort(600, starts=8, first_steps=30, latent_steps=60, feature_steps=40, noises=(2.0,)),
        memorising=_FULLY,
        # Three runs of a third of the plan's rounds: they cost one training.
        inverting=InvertingEffort(3, 50, 3, True, 1_000, 400, search_steps=200, search_restarts=8),
        shared=SharedEffort(queries=20, repeats=8, examples=60, trials=40, copies=600),
    ),
    "thorough": Effort(
        "thorough",
        images=20,
        steps=600,
        restarts=4,
        seeds=5,
        null_seeds=10,
        shadows=8,
        trials=10_000,
        noise_trials=1_000_000,
        noise_draws=2e9,
        factor_rounds=131_072,
        noisy_rounds=150,
        swapped_rounds=120,
        fresh_runs=3,
        most_trained_rounds=None,
        canaries=8_000,
        prior=PriorEffort(
            3_000, 16, first_steps=50, latent_steps=200, feature_steps=100, noises=(0.0, 0.5, 1.0, 2.0, 4.0)
        ),
        memorising=_FULLY,
        inverting=InvertingEffort(5, 0, 1, False, 3_000, 1_500, search_steps=400, search_restarts=16),
        shared=SharedEffort(queries=20, repeats=16, examples=200, trials=200, copies=600),
    ),
}
