"""Sound distributed noise for a plan: clipping and noise settings, what they spend, and both sides with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError, UnsoundPlanError
from bilateral.learning.client import Schedule, invited_clients
from bilateral.learning.halves import ClientHalf
from bilateral.learning.sampling import PoissonSchedule
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protocols.mask.fixed_point import FixedPointFormat
from bilateral.protocols.mask.neighbours import TOLERATED_DROPOUT, failure_probabilities
from bilateral.protocols.mask.widths import WIDEST, WIDTHS, Width
from bilateral.protocols.messages import UploadShape
from bilateral.protocols.noise.accounting import Exposure, SpendingReport, guarantee, multiplier_for, report
from bilateral.protocols.noise.adaptive import AdaptiveClip, AdaptiveNorm
from bilateral.protocols.noise.clipping import MAX_SAMPLES, ClipSettings
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.noise.sound import DistributedGaussian, SoundNoiseSettings, effective_multiplier, grid_bits

NOISE_REACH = 16.0
"""No noise is drawn beyond 13.3 standard deviations (`sound.standard_normal`)."""
ADAPTIVE_ROOM = 2.0**12
"""How far an adaptive norm may move, up or down: the range of the masks is fixed, and must hold it."""


class ClippingHalf(ClientHalf, Protocol):
    """A client's half that clips (`ModelProtection.can_clip`); what it clips to may change from round to round."""

    clip: ClipSettings | None


@dataclass(frozen=True)
class SoundNoise:
    """Settings of a run's noise, and what it spends."""

    settings: SoundNoiseSettings
    spending: SpendingReport


def num_terms(around: Groundwork) -> int:
    return len(around.plan.chosen.term_names(around.problem.loss))


def sound_noise(around: Groundwork) -> SoundNoise:
    """The plan's noise: as given, or as little as meets the plan's epsilon."""
    plan, exposure = around.plan, exposure_of(around)
    count, parameters = num_terms(around), around.layout.num_parameters
    fixed = SoundNoiseSettings(
        clip=clip_settings(around),
        noise_multiplier=1.0,
        min_honest=_min_honest(around),
        max_colluders=plan.noise.colluders,
        delta=plan.noise.delta,
    )

    def with_multiplier(multiplier: float) -> SoundNoiseSettings:
        if not plan.noise.adaptive_clip:
            return replace(fixed, noise_multiplier=multiplier)
        # A twentieth of the units in a round, as Andrew et al. suggest; never so little that it spends the budget.
        units = exposure.clients_per_round * fixed.clip.expected_batch_size
        adaptive = AdaptiveClip(count_noise=max(units / 20, multiplier))
        return replace(fixed, noise_multiplier=multiplier, adaptive=adaptive)

    if plan.noise.epsilon is None:
        assert plan.noise.noise_multiplier is not None
        settings = with_multiplier(plan.noise.noise_multiplier)
        return SoundNoise(settings, report(settings, exposure, count, parameters))
    needed = multiplier_for(plan.noise.epsilon, plan.noise.delta, exposure)
    # Rounding to the grid takes a little of the noise, so a little more is drawn.
    settings = with_multiplier(needed)
    for _ in range(50):
        effective = effective_multiplier(settings, count, parameters)
        if effective >= needed:
            return SoundNoise(settings, report(settings, exposure, count, parameters))
        settings = with_multiplier(settings.noise_multiplier * needed / effective * (1 + 1e-9))
    raise PlanError(
        f"Rounding {count * parameters} values costs more than the budget of epsilon {plan.noise.epsilon:g} allows.",
        remedy="Allow a larger epsilon, or use a smaller model.",
    )


def clip_settings(around: Groundwork) -> ClipSettings:
    """One norm for all terms together; sums over samples are divided by one public batch size."""
    noise, scales = around.plan.noise, around.plan.chosen.model.term_scales(around)
    if noise.unit == "sample" and max(around.sample_counts) > MAX_SAMPLES:
        raise PlanError(
            f"Expected at most {MAX_SAMPLES} samples at a client, got {max(around.sample_counts)}: rounding in a "
            "larger sum is not paid for.",
            remedy="Divide the samples among more clients.",
        )
    if noise.unit == "client":
        return ClipSettings(noise.clip, "client", term_scales=scales)
    return ClipSettings(noise.clip, "sample", float(_batch_size(around)), scales)


def exposure_of(around: Groundwork) -> Exposure:
    """How often one sample (or one client) is used, at most, in the plan's rounds."""
    plan, names = around.plan, around.names
    invited: Counter[str] = Counter()
    for round_index in range(plan.training.rounds):
        invited.update(invited_clients(names, plan.federation.participation, plan.seed, round_index))
    return Exposure(
        num_rounds=plan.training.rounds,
        sampling_rate=_rate(around, min(around.sample_counts)) if plan.noise.unit == "sample" else 1.0,
        num_clients=len(names),
        clients_per_round=around.num_participants,
        max_participations=max(invited.values()),
    )


def sound_report(around: Groundwork, noise: SoundNoise) -> PrivacyReport:
    """What is spent, and the noise in the mean of the uploads, term by term."""
    count = exposure_of(around).clients_per_round
    of_clients = noise.settings.term_deviations(num_terms(around))
    deviations = {f"term {number}, in the mean": d / count**0.5 for number, d in enumerate(of_clients)}
    figures = {
        "noise multiplier": noise.settings.noise_multiplier,
        "effective multiplier": noise.spending.effective_multiplier,
        "clip": noise.settings.clip.norm,
        "largest sampling rate": noise.spending.exposure.sampling_rate,
        "rounds of one client": float(noise.spending.exposure.rounds_of_one_client),
    }
    return PrivacyReport("sound", noise.settings.clip.unit, {**figures, **deviations}, noise.spending.rows)


def sound_sides(around: Groundwork) -> Sides:
    """Both sides with clipping and noise; the masks that it needs go on top."""
    noise, below = sound_noise(around), around.plan.chosen.halves
    settings = noise.settings
    bounds = _bounds(around, settings)
    width = _width(around, bounds, settings)
    fits = _GridCheck.of(around, bounds, width)
    fits(settings)
    adaptive = settings.adaptive
    return Sides(
        partial(below.make_server, around),
        partial(_make_client, around, noise, fits),
        UploadShape(num_terms(around), around.layout.num_parameters, int(adaptive is not None)),
        (below.guarantee(around), guarantee(settings, noise.spending)),
        fixed_bounds=bounds,
        width=width,
        # The range is fixed, so nobody has to refuse it; what the sum says about one unit is what epsilon bounds.
        covers=frozenset({11, 12}),
        weight=1,
        privacy=sound_report(around, noise),
        make_adaptive=None
        if adaptive is None
        else partial(AdaptiveNorm, adaptive, settings.clip, _norm_limits(settings)),
        term_scales=settings.clip.term_scales,
        check=below.recovery_check(around),
    )


def _norm_limits(settings: SoundNoiseSettings) -> tuple[float, float]:
    """Between which norms adaptive clipping stays, on both sides."""
    return settings.clip.norm / ADAPTIVE_ROOM, settings.clip.norm * ADAPTIVE_ROOM


def _make_client(around: Groundwork, noise: SoundNoise, fits: _GridCheck, seat: Seat) -> ClientParts:
    """A client that clips, and adds its part of the noise."""
    settings, counted = noise.settings, noise.settings.adaptive is not None
    half = around.plan.chosen.halves.make_client(around.basis(seat, clip=settings.clip, count_clipped=counted))
    adder = DistributedGaussian(
        seat.name,
        settings,
        around.secrets.stream("noise", seat.name),
        max_rounds=noise.spending.exposure.rounds_of_one_client,
        counter=seat.counter,
    )
    by_sample = around.plan.noise.unit == "sample"
    return ClientParts(
        half,
        _poisson_schedule(around, seat) if by_sample else around.batch_schedule(seat),
        lambda upload: adder.add_noise(upload, upload.round_index),
        adder.begin,
        _setter(cast("ClippingHalf", half), adder, fits) if counted else None,
    )


def _setter(half: ClippingHalf, noise: DistributedGaussian, fits: _GridCheck) -> Callable[[float], None]:
    low, high = _norm_limits(noise.settings)

    def set_norm(norm: float) -> None:
        assert half.clip is not None
        if not low <= norm <= high:  # the server's own never is: it would not follow the protocol
            raise ProtocolError(
                f"{half.name}: the plan's clipping norm stays between {low:.3g} and {high:.3g}, and the server sent "
                f"{norm:.3g}.",
                remedy="Leave this run: its server does not keep to the plan.",
            )
        fits(replace(noise.settings, clip=noise.settings.clip.with_norm(norm)))
        half.clip = half.clip.with_norm(norm)
        noise.set_norm(norm)

    return set_norm


@dataclass(frozen=True)
class _GridCheck:
    """The accounting counts on it that masks round nothing: the ring must be as fine as the grid of the noise."""

    fraction_bits: tuple[int, ...]

    @classmethod
    def of(cls, around: Groundwork, bounds: Sequence[float], width: Width) -> _GridCheck:
        return cls(FixedPointFormat.for_bounds(bounds, around.num_participants, width).fraction_bits)

    def __call__(self, settings: SoundNoiseSettings) -> None:
        if not self.holds(settings):
            raise NumericalRangeError(
                f"Noise for a clipping norm of {settings.clip.norm:.3g} is finer than the masks' range allows.",
                remedy="Use a clipping norm nearer to 1, less noise, or leave aggregation.width out.",
            )

    def holds(self, settings: SoundNoiseSettings) -> bool:
        needed = grid_bits(settings, len(self.fraction_bits) - 1)
        if settings.adaptive is None:  # the last row, of statistics, is empty
            needed = needed[:-1]
        return all(grid <= ring for grid, ring in zip(needed, self.fraction_bits, strict=False))


def _width(around: Groundwork, bounds: Sequence[float], settings: SoundNoiseSettings) -> Width:
    """The plan's, or the fewest bits that hold all values on the noise's grid; a norm that adapts has 64."""
    wanted = around.plan.aggregation.width
    if wanted != "auto":
        return wanted
    if settings.adaptive is not None:
        return WIDEST
    return next((width for width in WIDTHS if _GridCheck.of(around, bounds, width).holds(settings)), WIDEST)


def _min_honest(around: Groundwork) -> int:
    """Clients in every sum whose noise an observer does not know.

    The server with c colluders knows c noises. A client knows its own as well, so with c colluders c + 1: what is
    claimed against everybody must hold against it.
    """
    noise, aggregation, participants = around.plan.noise, around.mask_settings, around.num_participants
    in_sum, known = aggregation.floor_of(participants), noise.colluders + 1
    if in_sum - known < 1:
        raise PlanError(
            f"Expected fewer colluders: a client and {noise.colluders} colluders know all the noise in a sum of "
            f"{in_sum} clients, the fewest that it needs.",
            remedy="Lower noise.colluders, raise aggregation.threshold, or use more clients.",
        )
    chosen = aggregation.num_chosen(participants)
    if chosen == participants - 1:
        return in_sum - known
    with_server = max(1, noise.colluders)  # masks are in nobody's way but the server's
    risk = failure_probabilities(
        participants, chosen, aggregation.threshold, collusion=with_server / participants, dropout=TOLERATED_DROPOUT
    )
    if risk.privacy > 2.0**-40:
        raise UnsoundPlanError(
            f"Refused, colluders beyond what the graph tolerates: with {with_server} of {participants} colluding, some "
            f"client's upload shows with a chance of {risk.privacy:.1g} a round on a graph of {chosen} neighbours.",
            remedy="Use aggregation.graph = 'complete', more neighbours, or fewer colluders.",
        )
    return in_sum - known


def _bounds(around: Groundwork, settings: SoundNoiseSettings) -> list[float]:
    """A bound on every value of each row: all of a client's samples clipped, and the noise."""
    units = 1.0
    if settings.clip.unit == "sample":
        units = max(around.sample_counts)
    room = ADAPTIVE_ROOM if settings.adaptive is not None else 1.0
    count = num_terms(around)
    values = units * settings.clip.sensitivity / settings.clip.scales(count)
    rows = [
        room * (value + NOISE_REACH * deviation)
        for value, deviation in zip(values.tolist(), settings.term_deviations(count), strict=True)
    ]
    if settings.adaptive is None:
        return [*rows, 1.0]
    return [*rows, units / settings.clip.expected_batch_size + NOISE_REACH * settings.count_deviation]


def _batch_size(around: Groundwork) -> int:
    return around.plan.training.batch_size or max(around.sample_counts)


def _rate(around: Groundwork, num_samples: int) -> float:
    return min(1.0, _batch_size(around) / num_samples)


def _poisson_schedule(around: Groundwork, seat: Seat) -> Schedule:
    return PoissonSchedule(
        seat.num_samples, _rate(around, seat.num_samples), around.secrets.stream("batches", seat.name)
    )
