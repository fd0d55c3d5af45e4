"""The accountant of P2: Theorems 10 and 11, which are Sabater, Bellet and Ramon's (Gopa).

Noise of total weight `theta` (one over the noise-to-sensitivity ratio squared) gives (epsilon, delta) if

    epsilon >= theta / 2 + sqrt(theta)   and   (epsilon - theta / 2)^2 >= 2 log(2 / (delta sqrt(2 pi))) theta    (23)

P2 prints theta of the complete graph without the squares on the sigmas; Gopa has them, and so have we. On the n-out
graph the theorem ends in 3 delta: functions that take `graph` take the delta of the *result* and divide it themselves.

What these numbers mean for this scheme: see `guarantee`. They are for one round, and there is no composition theorem in
P2. The sensitivity, 1 in the paper, is how far one client's true gradient can move (Euclidean norm).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from bilateral.errors import PlanError
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.perturb.server import guarantee as perturbation_guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings

GraphName = Literal["complete", "n-out"]

PAIRWISE_SHARE = 0.01
"""Share of theta that `solve_noise` leaves to the pairwise noise: what it costs the mean is 0.5 % more noise."""


class NoiseLevels(NamedTuple):
    """Standard deviations of R * eta and R * Delta: a client's own noise and a pair's, in the true gradient's units."""

    independent: float
    pairwise: float


def theta_complete(num_clients: int, sigma_eta: float, sigma_delta: float) -> float:
    """Theorem 10, with squares: 1 / (K sigma_eta^2) + 1 / (K sigma_delta^2)."""
    return _inverse_square(sigma_eta) / num_clients + _inverse_square(sigma_delta) / num_clients


def theta_n_out(num_clients: int, num_neighbours: int, sigma_eta: float, sigma_delta: float) -> float:
    """Theorem 11. Infinite if floor((n - 1) / 3) <= 1, that is for n < 7: the formula then has no value."""
    return _inverse_square(sigma_eta) / num_clients + _pair_weight(
        num_clients, "n-out", num_neighbours
    ) * _inverse_square(sigma_delta)


def satisfies(epsilon: float, delta: float, theta: float) -> bool:
    """Both conditions of Eq. (23)."""
    _check_delta(delta)
    slack = epsilon - theta / 2.0
    return slack >= math.sqrt(theta) and slack**2 >= 2.0 * math.log(2.0 / (delta * math.sqrt(2.0 * math.pi))) * theta


def epsilon_of(theta: float, delta: float) -> float:
    """The smallest epsilon that satisfies Eq. (23)."""
    return theta / 2.0 + _steepness(delta) * math.sqrt(theta)


def theta_of(epsilon: float, delta: float) -> float:
    """The largest theta that satisfies Eq. (23): the inverse of `epsilon_of`."""
    if not 0 < epsilon < math.inf:
        raise PlanError(f"Expected epsilon above 0, got {epsilon}.", remedy="P2 uses 1 to 10.")
    a = _steepness(delta)
    root = 2.0 * epsilon / (math.sqrt(a * a + 2.0 * epsilon) + a)  # sqrt(a^2 + 2 epsilon) - a without cancelling
    return root * root


def failed_conditions(num_clients: int, num_neighbours: int, delta: float) -> list[str]:
    """The side conditions of Theorem 11 that do not hold, each as a text. `delta` is that of the result, 3 delta there.

    P2 does not check them. Its own experiments (K = 5 and 100, n = 5) fail most, and n = 5 gives no theta at all.
    """
    _check_clients(num_clients)
    k, n, inner = num_clients, num_neighbours, _inner_delta(delta, "n-out")
    conditions = (
        (f"K >= 81 (K = {k})", k >= 81),
        (f"n < K (n = {n}, K = {k})", n < k),
        (f"floor((n - 1) / 3) > 1, that is n >= 7 (n = {n})", (n - 1) // 3 > 1),
        *(
            (f"n >= {text} = {bound:.2f} (n = {n})", n >= bound)
            for text, bound in (
                ("4 log(2K / 3 delta)", 4.0 * math.log(2.0 * k / (3.0 * inner))),
                ("6 log(K / 3)", 6.0 * math.log(k / 3.0)),
                ("3/2 + 9/4 log(2e / delta)", 1.5 + 2.25 * math.log(2.0 * math.e / inner)),
            )
        ),
    )
    return [text for text, holds in conditions if not holds]


def solve_noise(
    epsilon: float,
    delta: float,
    num_clients: int,
    graph: GraphName = "complete",
    num_neighbours: int = 0,
    *,
    sensitivity: float = 1.0,
    pairwise_share: float = PAIRWISE_SHARE,
) -> NoiseLevels:
    """The noise for (epsilon, delta) in one round, with little in the sum.

    Only the independent noise stays in the sum, and it is smallest if the pairwise noise is infinite. Finite it must
    be, for it has to cancel in floating point: it gets `pairwise_share` of theta. Theorem 11's side conditions are
    not checked here (`failed_conditions`), only that the formula has a value.
    """
    _check_clients(num_clients)
    if not 0 < pairwise_share < 1:
        raise PlanError(f"Expected a pairwise share between 0 and 1, got {pairwise_share}.", remedy="Try 0.01.")
    if not 0 < sensitivity < math.inf:
        raise PlanError(f"Expected a sensitivity above 0, got {sensitivity}.", remedy="P2 assumes 1.")
    theta = theta_of(epsilon, _inner_delta(delta, graph))
    pair_weight = _pair_weight(num_clients, graph, num_neighbours)
    if math.isinf(pair_weight):
        raise PlanError(
            f"Theorem 11 gives no noise for {num_neighbours} neighbours: expected 7 or more.",
            remedy="Use more neighbours, or the complete graph.",
        )
    return NoiseLevels(
        sensitivity / math.sqrt(num_clients * (1.0 - pairwise_share) * theta),
        sensitivity * math.sqrt(pair_weight / (pairwise_share * theta)),
    )


def central_sigma(epsilon: float, delta: float, num_clients: int, *, sensitivity: float = 1.0) -> float:
    """Noise on the *mean* that a trusted server would add for the same (epsilon, delta) by the same condition.

    The sum moves by the sensitivity, so theta = sensitivity^2 / variance of the sum's noise. On the complete graph the
    published scheme's mean has this noise too, over sqrt(1 - pairwise share).
    """
    _check_clients(num_clients)
    return sensitivity / (num_clients * math.sqrt(theta_of(epsilon, delta)))


def local_sigma(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Noise that protects one client's gradient by itself: sqrt(K) times as much in the mean as `central_sigma`."""
    return sensitivity / math.sqrt(theta_of(epsilon, delta))


def guarantee(
    settings: PerturbationSettings,
    epsilon: float,
    delta: float,
    num_clients: int,
    graph: GraphName = "complete",
    num_neighbours: int = 0,
) -> Guarantee:
    """Published, conditional: what P2 claims, under conditions that its proof needs and its protocol does not meet."""
    conditions = [
        "published, conditional: holds for one round, for an observer who does NOT know the scale factors (the server "
        "does)",
        "every true gradient already has a norm of at most the assumed sensitivity (nobody clips it)",
        "no client drops out",
        "all neighbours are honest and keep their shared noise secret",
    ]
    if graph == "n-out":
        failed = failed_conditions(num_clients, num_neighbours, delta)
        if failed:
            conditions.append(f"NOT PROVED for this graph: Theorem 11 needs {'; '.join(failed)}")
    perturbed = perturbation_guarantee(settings)
    claim = Claim(
        "published differential privacy",
        f"({epsilon:g}, {delta:g})-differential privacy of the first uploaded term alone, per round",
        "an observer of that term",
        "; ".join(conditions),
    )
    leaks = [leak for leak in perturbed.leaks if leak.ledger_line != 3]
    leaks += [
        Leak(
            "the noise terms and batch statistics of each upload: they carry no noise, and invert to samples",
            "server",
            3,
        ),
        Leak("each client's gradient: given the scale factors, the noise on it is bounded, not normal", "server", 4),
    ]
    return Guarantee(
        "published noise", (*perturbed.claims, claim), tuple(sorted(leaks, key=lambda leak: leak.ledger_line))
    )


def _inverse_square(sigma: float) -> float:
    if sigma < 0 or math.isnan(sigma):
        raise PlanError(f"Expected a noise level of 0 or more, got {sigma}.", remedy="Use `solve_noise`.")
    return math.inf if sigma == 0 else 1.0 / (sigma * sigma)


def _pair_weight(num_clients: int, graph: GraphName, num_neighbours: int) -> float:
    """What 1 / sigma_delta^2 is multiplied with in theta."""
    if graph == "complete":
        return 1.0 / num_clients
    tree = (num_neighbours - 1) // 3 - 1
    return math.inf if tree <= 0 else 1.0 / tree + (12.0 + 6.0 * math.log(num_clients)) / num_clients


def _steepness(delta: float) -> float:
    """a in epsilon = theta / 2 + a sqrt(theta), the stronger one of the two conditions."""
    _check_delta(delta)
    return math.sqrt(max(1.0, 2.0 * math.log(2.0 / (delta * math.sqrt(2.0 * math.pi)))))


def _inner_delta(delta: float, graph: GraphName) -> float:
    _check_delta(delta)
    return delta / 3.0 if graph == "n-out" else delta


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise PlanError(f"Expected delta between 0 and 1, got {delta}.", remedy="Try 1e-5.")


def _check_clients(num_clients: int) -> None:
    if num_clients < 2:
        raise PlanError(f"Expected 2 clients or more, got {num_clients}.", remedy="Pairwise noise needs a pair.")
