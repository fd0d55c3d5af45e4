"""What a run spends: (epsilon, delta) of Poisson-subsampled Gaussian noise, composed over rounds (dp-accounting).

A sample is added or removed; a client's uploads are replaced by zeros. Sampling of samples inside a client (Poisson) is
secret and amplifies privacy against everybody. Sampling of clients is not secret from the server, which invites them,
nor from the clients of a round, who are told of each other: against them a unit spends a whole round whenever its
client takes part. Users who are no clients and do not know the draw get, for the unit "client", the amplification of
sampling without replacement. That theorem (Wang, Balle, Kasiviswanathan 2019) is about *replacing* one client, which
moves a sum by twice the clipping norm.

`pld` composes privacy loss distributions, rounded up on a grid of losses, so that epsilon is never understated; `rdp`
composes Renyi divergences and is looser. Sampling without replacement has RDP alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Literal

from bilateral.arguments import checked
from bilateral.errors import PlanError, UnsoundPlanError
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.noise.clipping import Unit
from bilateral.protocols.noise.sound import SoundNoiseSettings, effective_multiplier, missing_tails

AccountantName = Literal["pld", "rdp"]
EVERYBODY: Final = "server, other clients and users"
OUTSIDERS: Final = "users who are no clients"
LOSS_STEP: Final = 1e-3
"""Grid of privacy losses. Finer moves epsilon by less than 0.01 in thousands of rounds, and takes ten times as long."""
_RELATIVE_LOSS_STEP: Final = 1e-5
"""For huge epsilons, where a fixed step would need all memory."""
_ORDERS: Final = (*range(2, 64), 72, 80, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Whole orders have closed forms; those between them converge badly at low noise."""
_FEW_ORDERS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
"""Enough to know how large an epsilon is about."""
_TAIL_SHARE: Final = 1e-3
"""This part of delta pays for the tails that the noise generator cannot draw."""


@dataclass(frozen=True)
class Spending:
    """(epsilon, delta) of `num_rounds` rounds, and epsilon of one round at the same delta."""

    epsilon: float
    delta: float
    per_round_epsilon: float
    noise_multiplier: float
    sampling_rate: float
    num_rounds: int
    accountant: AccountantName


@checked
def spent(
    noise_multiplier: float,
    sampling_rate: float,
    num_rounds: int,
    delta: float,
    *,
    accountant: AccountantName = "pld",
) -> Spending:
    """What `num_rounds` rounds cost a unit that is in each with probability `sampling_rate`."""
    _check(noise_multiplier, sampling_rate, num_rounds, delta)
    one = _round_event(noise_multiplier, sampling_rate)
    total = _epsilon(_library().SelfComposedDpEvent(one, num_rounds), delta, accountant)
    first = total if num_rounds == 1 else _epsilon(one, delta, accountant)
    return Spending(total, delta, first, noise_multiplier, sampling_rate, num_rounds, accountant)


@checked
def noise_for(
    target_epsilon: float,
    delta: float,
    sampling_rate: float,
    num_rounds: int,
    *,
    accountant: AccountantName = "pld",
    tolerance: float = 1e-3,
) -> float:
    """The least noise multiplier (to a relative `tolerance`, never too small) that spends at most `target_epsilon`."""
    _check(1.0, sampling_rate, num_rounds, delta)
    if not 0 < target_epsilon < math.inf:
        raise PlanError(f"Expected a target epsilon above 0, got {target_epsilon}.", remedy="Try 8.")
    if not 0 < tolerance < 1:  # at 0 the search would never end
        raise PlanError(f"Expected a tolerance between 0 and 1, got {tolerance}.", remedy="Try 1e-3.")

    def suffices(z: float) -> bool:
        event = _library().SelfComposedDpEvent(_round_event(z, sampling_rate), num_rounds)
        # RDP is quick and at most this much too high: far from the goal it decides, and never for too little noise.
        if _rdp_epsilon(event, delta, orders=_FEW_ORDERS) > 4 * target_epsilon + 30:
            return False
        return _epsilon(event, delta, accountant) <= target_epsilon

    return _least(suffices, f"epsilon {target_epsilon:g} at delta {delta:g}", tolerance)


@dataclass(frozen=True)
class Exposure:
    """How often data are used.

    `sampling_rate`       chance of a sample to be in its client's batch (Poisson); 1 for the unit "client"
    `num_clients`, `clients_per_round`   a round's clients are drawn afresh, in a fixed number, by secret coins
    `max_participations`  most rounds that any single client takes part in; all of them if it is not known beforehand
    """

    num_rounds: int
    sampling_rate: float
    num_clients: int
    clients_per_round: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.clients_per_round <= self.num_clients:
            raise PlanError(f"Expected 1 to {self.num_clients} clients a round, got {self.clients_per_round}.")
        if self.max_participations is not None and not 1 <= self.max_participations <= self.num_rounds:
            raise PlanError(
                f"Expected a client to take part in 1 to {self.num_rounds} rounds, got {self.max_participations}."
            )

    @property
    def rounds_of_one_client(self) -> int:
        return self.num_rounds if self.max_participations is None else self.max_participations


@dataclass(frozen=True)
class ReportRow:
    """What one kind of observer can learn about one unit, and under which assumption."""

    observer: str
    epsilon_per_round: float
    epsilon: float
    delta: float
    assumption: str


@dataclass(frozen=True)
class SpendingReport:
    """Spending against everybody first, then against those who know less."""

    unit: Unit
    noise_multiplier: float
    effective_multiplier: float
    exposure: Exposure
    rows: tuple[ReportRow, ...]


def report(
    settings: SoundNoiseSettings,
    exposure: Exposure,
    num_terms: int,
    num_parameters: int,
    *,
    accountant: AccountantName = "pld",
) -> SpendingReport:
    """Spending of a run, rounding to the grid and missing tails included; counts of adaptive clipping too.

    The noise multiplier of `settings` already pays for the counts (`adaptive.py`).
    """
    unit, delta = settings.clip.unit, settings.delta
    if unit == "client" and exposure.sampling_rate != 1:
        raise UnsoundPlanError(
            f"Sampling samples (rate {exposure.sampling_rate}) does not amplify the privacy of whole clients.",
            remedy="Use a rate of 1, or unit = 'sample'.",
        )
    z = effective_multiplier(settings, num_terms, num_parameters)
    paid = delta * (1 - _TAIL_SHARE)
    everybody = spent(z, exposure.sampling_rate, exposure.rounds_of_one_client, paid, accountant=accountant)
    _check_tails(settings, exposure, num_terms * num_parameters + 1, everybody.epsilon)
    honest = (
        f"every sum holds {settings.min_honest} or more honest clients besides the observer and those that collude "
        f"with it ({settings.max_colluders} at most)"
    )
    change = "add or remove one sample" if unit == "sample" else "replace one client's uploads by zeros"
    row = ReportRow(
        EVERYBODY,
        everybody.per_round_epsilon,
        everybody.epsilon,
        delta,
        f"the server sees sums alone (masks); {honest}; {change}; a client takes part in at most "
        f"{exposure.rounds_of_one_client} rounds; batches and other randomness of a client stay secret, its number of "
        "samples is public; the generator of the noise is taken as exact",
    )
    rows = [row]
    if unit == "client" and exposure.clients_per_round < exposure.num_clients:
        amplified = _amplified_row(z, settings, exposure, honest)
        rows += [amplified] if amplified.epsilon < row.epsilon else []
    return SpendingReport(unit, settings.noise_multiplier, z, exposure, tuple(rows))


def multiplier_for(target_epsilon: float, delta: float, exposure: Exposure) -> float:
    """The least *effective* multiplier with which a run's `report` stays within `target_epsilon`."""
    paid = delta * (1 - _TAIL_SHARE)
    return noise_for(target_epsilon, paid, exposure.sampling_rate, exposure.rounds_of_one_client)


def guarantee(settings: SoundNoiseSettings, spending: SpendingReport) -> Guarantee:
    """The claim in figures."""
    unit = settings.clip.unit
    what = "whether one sample was in the training data" if unit == "sample" else "what one client's data are"
    claims = tuple(
        Claim(
            "differential privacy",
            f"{what}: epsilon {row.epsilon:.3g} in total and "
            f"{row.epsilon_per_round:.3g} a round, at delta {row.delta:g}",
            row.observer,
            row.assumption,
        )
        for row in spending.rows
    )
    left = "who takes part and who drops out" + ("; what is true of a whole client" if unit == "sample" else "")
    return Guarantee("sound distributed noise", claims, (Leak(left, "server", 12),))


def _amplified_row(z: float, settings: SoundNoiseSettings, exposure: Exposure, honest: str) -> ReportRow:
    """Client sampling amplifies against those who do not know the draw: not the server, and not a round's clients."""
    drawn = exposure.clients_per_round
    population = max(drawn, exposure.num_clients - settings.max_colluders)
    # Replacing a client moves the sum by up to twice the norm.
    one = _library().SampledWithoutReplacementDpEvent(population, drawn, _library().GaussianDpEvent(z / 2))
    every = _library().SelfComposedDpEvent(one, exposure.num_rounds)
    replaced, paid = _library().NeighboringRelation.REPLACE_ONE, settings.delta * (1 - _TAIL_SHARE)
    return ReportRow(
        OUTSIDERS,
        _rdp_epsilon(one, paid, replaced),
        _rdp_epsilon(every, paid, replaced),
        settings.delta,
        f"{honest}; replace one client; {drawn} of {exposure.num_clients} clients are drawn afresh every round, and "
        f"the draw stays secret from the observer (who does not know the plan's seed); over all {exposure.num_rounds} "
        "rounds",
    )


def _check_tails(settings: SoundNoiseSettings, exposure: Exposure, num_coordinates: int, epsilon: float) -> None:
    """Tails that are not drawn cost (1 + e^epsilon) times their distance of delta. Refuse what is not negligible."""
    distance = missing_tails(num_coordinates, exposure.num_rounds, exposure.clients_per_round)
    if not math.log1p(math.exp(-epsilon)) + epsilon + math.log(distance) < math.log(settings.delta * _TAIL_SHARE):
        raise UnsoundPlanError(
            f"The tails that the noise generator cannot draw would cost more than a thousandth of delta "
            f"{settings.delta:g} (epsilon {epsilon:.3g}).",
            remedy="Add more noise: an epsilon of that size protects nothing.",
        )


@cache
def _library() -> Any:
    """dp-accounting, loaded when a plan has noise to account for: it brings half of scipy with it."""
    import dp_accounting  # noqa: PLC0415

    return dp_accounting


def _round_event(noise_multiplier: float, sampling_rate: float) -> Any:
    gaussian = _library().GaussianDpEvent(noise_multiplier)
    return gaussian if sampling_rate == 1 else _library().PoissonSampledDpEvent(sampling_rate, gaussian)


@lru_cache(maxsize=1024)
def _epsilon(event: Any, delta: float, accountant: AccountantName) -> float:
    """Kept: a tenth of a second or more each, and a run, its report and its audit ask for the same ones."""
    if accountant == "rdp":
        return _rdp_epsilon(event, delta)
    step = max(LOSS_STEP, _RELATIVE_LOSS_STEP * _rdp_epsilon(event, delta, orders=_FEW_ORDERS))
    return float(_library().pld.PLDAccountant(value_discretization_interval=step).compose(event).get_epsilon(delta))


def _rdp_epsilon(
    event: Any,
    delta: float,
    neighbours: Any = None,
    orders: tuple[int, ...] = _ORDERS,
) -> float:
    dp = _library()
    relation = neighbours or dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = dp.rdp.RdpAccountant(orders=orders, neighboring_relation=relation)
    return float(accountant.compose(event).get_epsilon(delta))


def _least(suffices: Callable[[float], bool], goal: str, tolerance: float) -> float:
    """The least z that suffices, by doubling and then bisection on a logarithmic scale."""
    low, high = 1 / 16, 1 / 8
    while not suffices(high):
        low, high = high, 2 * high
        if high > 2.0**24:
            raise PlanError(f"No noise multiplier up to {high:g} reaches {goal}.", remedy="Allow a larger epsilon.")
    if suffices(low):
        return low
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _check(noise_multiplier: float, sampling_rate: float, num_rounds: int, delta: float) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise PlanError(f"Expected a noise multiplier above 0, got {noise_multiplier}.", remedy="Try 1.")
    if not 0 < sampling_rate <= 1:
        raise PlanError(f"Expected a sampling rate above 0 and at most 1, got {sampling_rate}.")
    if num_rounds < 1:
        raise PlanError(f"Expected one round or more, got {num_rounds}.")
    if not 0 < delta < 1:
        raise PlanError(f"Expected delta between 0 and 1, got {delta}.", remedy="Try 1e-5.")
