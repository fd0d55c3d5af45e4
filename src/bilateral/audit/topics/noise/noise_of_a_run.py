"""What was really added to the uploads of a recorded run: sums less the data behind them, and each client's noise.

The data of an upload are recomputed from the recorded batch by the client's own half, which clips and adds nothing.
Single clients' noise is not in a recording (masks hide it); the same client's code draws it again, and the sum over
clients shows whether it is the noise of the recording (`mismatch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bilateral.audit.experiment import Context
from bilateral.audit.recording import Recording
from bilateral.audit.threat import server_view
from bilateral.audit.topics.noise.neighbouring_worlds import groundwork_of
from bilateral.audit.views import View
from bilateral.engine.plan import RunPlan
from bilateral.errors import ProtocolError
from bilateral.learning.client import TrainingClient
from bilateral.protections.sides import ClientParts, Seat
from bilateral.protections.sound.sides import num_terms, sound_noise, sound_sides
from bilateral.protocols.membership import ClipNorm
from bilateral.protocols.messages import Aggregate, RoundModel, Upload
from bilateral.protocols.noise.sound import SoundNoiseSettings

_MOST_NUMBERS = 1e7
"""Of all single uploads together."""


@dataclass(frozen=True, eq=False)
class RunNoise:
    """Noise of a run in standard deviations as claimed: of one client's noise, or of that of all clients of a sum."""

    sums: Tensor
    """rounds x terms x coordinates, from the recording."""
    singles: Tensor
    """uploads x terms x coordinates, all clients of a round after each other."""
    owners: tuple[str, ...]
    """Whose upload it is."""
    honest_sums: Tensor
    """rounds x terms x coordinates: the fewest clients whose noise the claim rests on."""
    count_sums: Tensor
    """The counts of adaptive clipping, as the norms that were sent next give them away; empty without it."""
    count_singles: Tensor
    used: dict[tuple[str, int], Tensor]
    """By client and round: of every sample, whether it was in the batch."""
    layers: tuple[tuple[int, int], ...]
    """Where the coordinates of each parameter begin and end."""
    mismatch: float
    """How far the single uploads, added up, are from the recorded sums; in deviations of one client's noise."""


def short_plan(context: Context, settings: SoundNoiseSettings, clients: int, numbers: int) -> RunPlan:
    """The plan's own noise in fewer rounds. `numbers`: of one upload."""
    wanted = min(context.effort.noisy_rounds, context.plan.training.rounds)
    rounds = max(2, min(wanted, int(_MOST_NUMBERS / (clients * numbers))))
    changed = {"noise.epsilon": None, "noise.noise_multiplier": settings.noise_multiplier, "training.rounds": rounds}
    return context.plan.with_settings(changed)


def claimed_deviations(settings: SoundNoiseSettings, terms: int) -> Tensor:
    """Of one client's noise on each term: so that `min_honest` of them make noise z times the sensitivity."""
    central = settings.terms_multiplier * settings.clip.norm / settings.clip.expected_batch_size
    return central / settings.clip.scales(terms) / math.sqrt(settings.min_honest)


def noise_of_run(context: Context, plan: RunPlan, on_round: Callable[[float], None] = lambda _: None) -> RunNoise:
    """Record the plan, and take its data off what the server unmasked."""
    recording = context.record(plan, on_round=lambda done, rounds: on_round(0.5 * done / rounds))
    return _Reader(context, recording).read(on_round)


class _Reader:
    """Goes through a recording with clients that are built as those of the run were."""

    def __init__(self, context: Context, recording: Recording) -> None:
        around = groundwork_of(replace(context, plan=recording.plan))
        layer = sound_sides(around)
        self._recording = recording
        self._view: View = server_view(recording)
        self._settings = sound_noise(around).settings
        self._terms = num_terms(around)
        self._parts: dict[str, ClientParts] = {}
        self._clients: dict[str, TrainingClient] = {}
        for name, share in recording.shares.items():
            parts = self._parts[name] = layer.make_client(Seat(name, len(share)))
            draws, augment = around.secrets.training_stream(name), recording.plan.training.augment
            self._clients[name] = TrainingClient(
                parts.half, share, parts.schedule, draws, weight=layer.weight, augment=augment
            )

    def read(self, on_round: Callable[[float], None]) -> RunNoise:
        sums: list[Tensor] = []
        singles: list[Tensor] = []
        honest: list[Tensor] = []
        owners: list[str] = []
        counts: list[float] = []
        count_sums: list[float] = []
        mismatch = 0.0
        used: dict[tuple[str, int], Tensor] = {}
        rounds = self._recording.server_rounds
        for number, kept in enumerate(rounds):
            settings, names = self._settings_of(kept.round_index), kept.total.contributors
            deviation = claimed_deviations(settings, self._terms)[:, None]
            pairs = [self._uploads(name, kept.round_index) for name in names]
            clean = sum((one.terms.double() for one, _ in pairs), torch.zeros_like(kept.total.terms))
            noises = [(noisy.terms.double() - one.terms.double()) / deviation for one, noisy in pairs]
            found = (kept.total.terms - clean) / deviation
            mismatch = max(mismatch, float((sum(noises, torch.zeros_like(clean)) - found).abs().max()))
            sums.append(found / math.sqrt(len(names)))
            few = noises[: settings.min_honest]
            honest.append(sum(few, torch.zeros_like(clean)) / math.sqrt(len(few)))
            singles += noises
            owners += names
            if settings.adaptive is not None:
                unit = settings.adaptive.count_noise / settings.clip.expected_batch_size / settings.min_honest**0.5
                counts += [float(noisy.statistics[0] - one.statistics[0]) / unit for one, noisy in pairs]
                total = self._count_of(kept.total)
                if total is not None:
                    rest = total - sum(float(one.statistics[0]) for one, _ in pairs)
                    count_sums.append(rest / unit / math.sqrt(len(names)))
            for name in names:
                used[name, kept.round_index] = self._used(name, kept.round_index)
            on_round(0.5 + 0.5 * (number + 1) / len(rounds))
        layers = tuple((one.offset, one.offset + one.numel) for one in self._recording.graph.parameters)
        return RunNoise(
            torch.stack(sums),
            torch.stack(singles),
            tuple(owners),
            torch.stack(honest),
            torch.tensor(count_sums, dtype=torch.float64),
            torch.tensor(counts, dtype=torch.float64),
            used,
            layers,
            mismatch,
        )

    def _norm(self, round_index: int) -> float | None:
        message = self._view.message(ClipNorm, round_index=round_index)
        return None if message is None else float(message.norm)

    def _settings_of(self, round_index: int) -> SoundNoiseSettings:
        norm = self._norm(round_index)
        return self._settings if norm is None else replace(self._settings, clip=self._settings.clip.with_norm(norm))

    def _uploads(self, name: str, round_index: int) -> tuple[Upload, Upload]:
        """What the client computes of the recorded batch, and the same with its noise."""
        parts, client = self._parts[name], self._clients[name]
        if not torch.equal(client.batch(round_index).inputs, self._recording.batches[name, round_index].inputs):
            raise ProtocolError(f"{name} draws another batch in round {round_index} than it was recorded with.")
        model = self._view.message(RoundModel, round_index=round_index, receiver=name)
        norm = self._norm(round_index)
        if norm is not None and parts.set_norm is not None:
            parts.set_norm(norm)
        assert model is not None
        clean = client.handle((model,))
        assert isinstance(clean, Upload)
        return clean, clean if parts.privatise is None else parts.privatise(clean)

    def _count_of(self, total: Aggregate) -> float | None:
        """The noisy count of a round, from the norm of the next (`AdaptiveNorm.take`); None after the last round."""
        before, after = self._norm(total.round_index), self._norm(total.round_index + 1)
        adaptive = self._settings.adaptive
        if before is None or after is None or adaptive is None:
            return None
        share = adaptive.target_quantile - math.log(after / before) / adaptive.learning_rate
        return (share - 0.5) * total.total_weight

    def _used(self, name: str, round_index: int) -> Tensor:
        found = torch.zeros(len(self._recording.shares[name]), dtype=torch.bool)
        found[self._parts[name].schedule.batch(round_index)] = True
        return found
