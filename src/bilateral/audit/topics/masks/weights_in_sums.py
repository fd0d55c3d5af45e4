"""What the last bits of a masked sum tell: the weights of clients, and which coordinates are one client's alone.

The plan's own uploads are taken from a run without masks. At half of the coordinates all clients but one are silenced
(as a dead neuron, an unused row of an embedding or a black pixel does it), and the real clients and the real server of
secure aggregation make the sum. The attacker is told where it has a client alone, which makes it stronger than it is.
Positive control: the products of weight and value added exactly, as this project did it once. Negative control: masked
sums of values that were moved a little beforehand, by so much as to be any real numbers. (A sum of several is larger
than one of one client and so has more bits; that is in both, and is the sum's own.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_subject
from bilateral.audit.membership_metrics import auc
from bilateral.audit.scores import AUC, Metric, Scores
from bilateral.audit.threat import server_view
from bilateral.audit.topics.masks.attacks.weight_lattice import odd_part, used_bits, weight_scores
from bilateral.audit.topics.noise.neighbouring_worlds import groundwork_of
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.learning.exchange import LocalExchange, Packet
from bilateral.learning.masked_aggregation import MaskedAggregation
from bilateral.learning.uploading import MaskUploader
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.messages import Message, RoundModel, Upload, UploadShape, aggregate

FOUND = Metric("weights found among 200", "high", is_rate=True, digits=2)
STANDS_OUT = Metric("deviations by which the weight stands out", "high", digits=1)
_TRIALS = 40
_CANDIDATES = 200
_MOST_SUMS = 3000
_FEWEST_SUMS = 30
_ALONE = 0.5
_MOVED = 2.0**-19
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Staged:
    """The uploads of a round, silenced, and who is alone at which coordinate: an index, -1 for nobody."""

    uploads: Mapping[str, Upload]
    alone: NDArray[np.int64]


class _Replaying:
    """A client that has trained already: the real half of secure aggregation around a given upload."""

    def __init__(self, uploader: MaskUploader) -> None:
        self._uploader = uploader
        self.upload: Upload | None = None

    def handle(self, packet: Packet) -> Message:
        for message in packet:
            if isinstance(message, RoundModel):
                assert self.upload is not None
                self._uploader.bind(message)
                return self._uploader.finish(self.upload)
            reply = self._uploader.handle(message)
            if reply is not None:
                return reply
        raise AssertionError("nothing in this packet has an answer")


def _weights(context: Context) -> Sequence[Evidence]:
    context.on_progress(0.0, "uploads of the plan")
    staged = list(_staged(context))
    context.on_progress(0.3, "masked sums")
    masked = _masked_sums(context, staged)
    exact = [_flat(aggregate(one.uploads, number).terms) for number, one in enumerate(staged)]
    draws = np.random.default_rng(context.randomness("weights in sums").integer_below(2**32))
    moved = _masked_sums(context, [_Staged(_moved(one, draws), one.alone) for one in staged])
    context.on_progress(0.5, "trying weights")
    conditions = [
        (masked, "masked sums of this plan"),
        (exact, "weight times value, added exactly"),
        (moved, "masked sums of values that were moved a little"),
    ]
    seed = int(draws.integers(2**32))
    found = [_weights_found(what, sums, staged, seed) for sums, what in conditions]
    context.on_progress(0.8, "looking for single contributors")
    single = [_single_found(what, sums, staged) for sums, what in conditions]
    context.on_progress(1.0, "weights done")
    return [
        *_evidence("divisors of sums of one client alone", found, Gate(STANDS_OUT, 6.0)),
        *_evidence("bits that a sum uses", single, Gate(AUC, 0.85)),
    ]


def _evidence(attack: str, conditions: Sequence[Condition | None], gate: Gate) -> Iterator[Evidence]:
    """Nothing, if there are too few sums to look at."""
    target, positive, negative = conditions
    if target is None:
        return
    yield with_controls(
        "single uploads",
        "curious server",
        attack,
        "sums, and where one client is alone",
        gate,
        target=target,
        positive=positive,
        negative=negative,
        remark="uploads of this plan, silenced at half of the coordinates but for one client",
    )


def _staged(context: Context) -> Iterator[_Staged]:
    names = context.federation().names
    present = context.plan.federation.num_participants(len(names))
    rounds = math.ceil(_TRIALS / present)
    recording = context.record(context.plan.with_settings({"training.rounds": rounds, "aggregation.masks": "none"}))
    draws = np.random.default_rng(context.randomness("silenced").integer_below(2**32))
    view = server_view(recording)
    for number in range(rounds):
        uploads = {entry.sender: m for entry, m in view.messages(Upload, round_index=number)}
        shape = next(iter(uploads.values())).terms.shape
        alone = np.where(draws.random(shape) < _ALONE, draws.integers(len(uploads), size=shape), -1)
        silenced = {}
        for index, (name, upload) in enumerate(sorted(uploads.items())):
            kept = torch.from_numpy((alone == -1) | (alone == index))
            silenced[name] = Upload(number, upload.weight, upload.terms * kept, upload.statistics)
        yield _Staged(silenced, alone.reshape(-1))


def _masked_sums(context: Context, staged: Sequence[_Staged]) -> list[FloatArray]:
    """By the real parties, round after round, so that ranges follow the sums."""
    around = groundwork_of(context)
    settings, secrets = around.mask_settings, SimulatedSecrets(context.plan.seed, around.names)
    first = next(iter(staged[0].uploads.values()))
    num_terms, num_parameters = first.terms.shape
    shape = UploadShape(num_terms, num_parameters, len(first.statistics))
    server = MaskServer(secrets.run_id, around.names, settings, pinned=secrets.pinned())
    aggregation = MaskedAggregation(server, secrets.run_id, around.names, shape)
    clients: dict[str, _Replaying] = {}
    for name in around.names:
        ring = secrets.key_ring(name)
        clients[name] = _Replaying(MaskUploader(MaskClient(ring, settings, secrets.stream("masks", name)), ring))
    exchange = LocalExchange(clients, lambda *_: None)
    sums = []
    for number, one in enumerate(staged):
        for name, upload in one.uploads.items():
            clients[name].upload = upload
        model = PlainModel(number, torch.zeros(1))
        opened = aggregation.open(number, list(one.uploads), exchange)
        replies = exchange(number, {name: (*before, model) for name, before in opened.items()})
        sums.append(_flat(aggregation.close(number, replies, exchange, (model,)).terms))
    return sums


def _moved(one: _Staged, draws: np.random.Generator) -> dict[str, Upload]:
    found = {}
    for name, upload in one.uploads.items():
        factors = torch.from_numpy(1.0 + _MOVED * (draws.random(tuple(upload.terms.shape)) - 0.5))
        found[name] = Upload(upload.round_index, upload.weight, upload.terms.double() * factors, upload.statistics)
    return found


def _weights_found(what: str, sums: Sequence[FloatArray], staged: Sequence[_Staged], seed: int) -> Condition | None:
    deviations, hits = [], []
    for number, (one, total) in enumerate(zip(staged, sums, strict=True)):
        for index, upload in enumerate(one.uploads.values()):
            seen = total[(one.alone == index) & (total != 0)][:_MOST_SUMS]
            if len(seen) < _FEWEST_SUMS:
                continue
            draws = np.random.default_rng((seed, number, index))
            truth = odd_part(upload.weight)
            scores = weight_scores(seen, [truth, *_others(truth, upload.weight, draws)], draws)
            deviations.append(float(scores[0]))
            hits.append(float(scores[0] > scores[1:].max()))
    return Condition(what, (Scores(FOUND, tuple(hits)), Scores(STANDS_OUT, tuple(deviations)))) if hits else None


def _others(truth: int, weight: int, draws: np.random.Generator) -> list[int]:
    """Odd numbers that come into question as well."""
    largest = max(2 * weight, 4 * _CANDIDATES)
    drawn = 2 * draws.choice(largest // 2, size=_CANDIDATES, replace=False) + 1
    return [int(other) for other in drawn if other != truth]


def _single_found(what: str, sums: Sequence[FloatArray], staged: Sequence[_Staged]) -> Condition | None:
    found = []
    for one, total in zip(staged, sums, strict=True):
        all_shared = used_bits(total[(one.alone == -1) & (total != 0)])
        for index in range(len(one.uploads)):
            shared = all_shared[index :: len(one.uploads)][:_MOST_SUMS]  # others for each: trials are independent
            single = used_bits(total[(one.alone == index) & (total != 0)])[:_MOST_SUMS]
            if min(len(single), len(shared)) >= _FEWEST_SUMS:
                found.append(auc(-single.astype(np.float64), -shared.astype(np.float64)))
    return Condition(what, (Scores(AUC, tuple(found)),)) if found else None


def _flat(terms: torch.Tensor) -> FloatArray:
    flat: FloatArray = terms.double().reshape(-1).numpy()
    return flat


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_subject(guarantee, "single uploads"):
        return "uploads are not summed under ring masks"
    if plan.traits.computes_on_shares:
        return "sums of ring words have no last bits, and numbers of samples are public"
    return "" if not plan.traits.adds_noise else "every coordinate carries noise, and weights are public"


EXPERIMENT = Experiment(
    "weights-in-sums",
    "Weights and single contributors, from the last bits of sums",
    ("single uploads",),
    _applies,
    _weights,
    weight=8.0,
)
