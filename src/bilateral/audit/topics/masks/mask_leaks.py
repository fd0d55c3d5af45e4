"""Uploads under the papers' real-valued masks, as the server sees them (ledger line 6).

The truth comes from a twin of the run without masks: same seeds, same secrets of perturbation, same batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, Tried, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line
from bilateral.audit.recording import Recording
from bilateral.audit.scores import Metric, Scores, rate_interval
from bilateral.audit.threat import server_view
from bilateral.audit.topics.masks.attacks.float_mask import (
    differences_of_terms,
    mask_deviation,
    matched_filter,
    relative_error,
)
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.float_masks import FloatMaskClient
from bilateral.protocols.mask.graph import PairGraph
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.messages import Upload

TOLD_APART = Metric("uploads told apart", "high", is_rate=True, digits=2)
FILTERED = Metric("matched filter, deviations", "high", digits=2)
READ = Metric("uploads read to 1 %", "high", is_rate=True, digits=2)
READ_ERROR = Metric("relative error of the upload", "low", digits=2)
_TRIALS = 20
_SCALES = (1.0, 1e2, 1e4, 1e6)
_READ = 0.01
"""The relative error at which an upload counts as read."""
Uploads = dict[tuple[str, int], Upload]


def _float_masks(context: Context) -> list[Evidence]:
    federation = context.federation()
    rounds = math.ceil(_TRIALS / context.plan.federation.num_participants(len(federation.members)))
    plan = context.plan.with_settings({"training.rounds": rounds})
    context.on_progress(0.0, "a run with real-valued masks")
    recording = context.record(plan)
    bare = context.record(plan.with_settings({"aggregation.masks": "none"}))
    masked, plain = _uploads_of(recording), _uploads_of(bare)
    lost = max(
        relative_error(ours.total.terms, theirs.total.terms)
        for ours, theirs in zip(recording.server_rounds, bare.server_rounds, strict=True)
    )
    remark = f"mask scale {plan.aggregation.float_scale:g}; the masks cost the sum a relative error of {lost:.1g}"
    context.on_progress(0.5, "reading masked uploads")
    found = [
        _read_as_it_is(context, recording, masked, plain, remark),
        _told_apart(context, recording, masked, plain, remark),
    ]
    if len(next(iter(plain.values())).terms) > 1:
        found.append(_same_mask(recording, masked, plain))
    context.on_progress(1.0, "real-valued masks done")
    return found


def _uploads_of(recording: Recording) -> Uploads:
    view = server_view(recording)
    return {(entry.sender, entry.round_index): message for entry, message in view.messages(Upload)}


def _deviation(recording: Recording, upload: Upload, scale: float) -> float:
    participants = len(recording.batches) // len(recording.server_rounds)
    chosen = recording.plan.aggregation.settings()
    names = tuple(sorted(recording.shares))[:participants]
    graph = PairGraph.of(names, chosen, bytes(32))
    return mask_deviation(scale, len(graph.neighbours(names[0])), upload.weight)


def _read_as_it_is(context: Context, recording: Recording, masked: Uploads, plain: Uploads, remark: str) -> Evidence:
    """Naive: as if there were no mask. The negative control is a mask with nothing under it."""
    scale = recording.plan.aggregation.float_scale

    def nothing(key: tuple[str, int]) -> float:
        drawn = context.randomness("mask", *key).normal(*plain[key].terms.shape)
        return relative_error(_deviation(recording, plain[key], scale) * drawn, plain[key].terms.double())

    return with_controls(
        6,
        "curious server",
        "reading uploads as they are",
        "masked uploads",
        Gate(READ, 0.95),
        target=_read("uploads of this plan", [_error(masked[k], u) for k, u in plain.items()]),
        positive=_read("the same without masks", [_error(u, u) for u in plain.values()]),
        negative=_read("a mask with nothing under it", [nothing(key) for key in plain]),
        adaptive=False,
        remark=remark,
    )


def _read(what: str, errors: Sequence[float]) -> Tried:
    return what, [float(error <= _READ) for error in errors]


def _error(read: Upload, truth: Upload) -> float:
    return relative_error(read.terms, truth.terms.double())


def _told_apart(context: Context, recording: Recording, masked: Uploads, plain: Uploads, remark: str) -> Evidence:
    """Adaptive: is it this client's upload or another's? Negative: the middle of both, which is exactly undecided."""
    scale = recording.plan.aggregation.float_scale
    others = _others(plain)

    def filtered(key: tuple[str, int], seen: Upload, deviation: float) -> float:
        return matched_filter(seen, plain[key].terms, plain[others[key]].terms, deviation)

    def middle(key: tuple[str, int]) -> Upload:
        mine, deviation = plain[key], _deviation(recording, plain[key], scale)
        drawn = context.randomness("middle", *key).normal(*mine.terms.shape)
        between = (mine.terms + plain[others[key]].terms).double() / 2
        return Upload(key[1], mine.weight, between + deviation * drawn, mine.statistics)

    keys = list(plain)
    sizes = {key: _deviation(recording, plain[key], scale) for key in keys}
    curve = Curve(
        "Uploads told apart over the scale of real-valued masks",
        "mask scale",
        TOLD_APART.name,
        {"matched filter": tuple(_at_scale(recording, plain, filtered, scale) for scale in _SCALES)},
    )
    return with_controls(
        6,
        "curious server",
        "matched filter between two suspected uploads",
        "masked uploads, and the public scale of the masks",
        Gate(TOLD_APART, 0.95),
        target=_filtered("uploads of this plan", [filtered(key, masked[key], sizes[key]) for key in keys]),
        positive=_filtered("the same without masks", [filtered(key, plain[key], sizes[key]) for key in keys]),
        negative=_filtered("halfway between the two", [filtered(key, middle(key), sizes[key]) for key in keys]),
        remark=remark,
        curves=(curve,),
    )


def _others(plain: Uploads) -> dict[tuple[str, int], tuple[str, int]]:
    """For every upload another client's of the same round."""
    found = {}
    for name, round_index in plain:
        present = sorted(other for other, number in plain if number == round_index)
        found[name, round_index] = (present[(present.index(name) + 1) % len(present)], round_index)
    return found


def _filtered(what: str, values: Sequence[float]) -> Condition:
    right = tuple(float(value > 0) for value in values)
    return Condition(what, (Scores(TOLD_APART, right), Scores(FILTERED, tuple(values))))


def _at_scale(
    recording: Recording,
    plain: Uploads,
    filtered: Callable[[tuple[str, int], Upload, float], float],
    scale: float,
) -> tuple[float, float, float, float]:
    """The same attack on the same uploads under the real masks of another scale."""
    seen = _masked_by(recording, plain, scale)
    right = [float(filtered(key, seen[key], _deviation(recording, upload, scale)) > 0) for key, upload in plain.items()]
    return (scale, sum(right) / len(right), *rate_interval(right))


def _masked_by(recording: Recording, plain: Uploads, scale: float, *, one_mask: bool = False) -> Uploads:
    """The papers' masks on these uploads, by the real clients with keys of their own."""
    names = list(recording.shares)
    secrets = SimulatedSecrets(recording.plan.seed, names, term=1)
    rings = {name: secrets.key_ring(name) for name in names}
    directory = KeyDirectory(secrets.run_id, names, secrets.pinned())
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    settings = recording.plan.aggregation.settings()
    clients = {n: FloatMaskClient(r, scale, settings, one_mask_for_all_terms=one_mask) for n, r in rings.items()}
    return {
        (name, number): clients[name].mask(upload, number, [other for other, there in plain if there == number])
        for (name, number), upload in plain.items()
    }


def _same_mask(recording: Recording, masked: Uploads, plain: Uploads) -> Evidence:
    """P0 adds one mask to all terms of a client (Eq. 27); the plan's own masks are the negative control."""
    published = _masked_by(recording, plain, recording.plan.aggregation.float_scale, one_mask=True)

    def errors(seen: Uploads) -> list[float]:
        return [
            relative_error(differences_of_terms(seen[key].terms), differences_of_terms(upload.terms.double()))
            for key, upload in plain.items()
        ]

    return with_controls(
        6,
        "curious server",
        "differences of terms under one mask",
        "masked uploads",
        Gate(READ_ERROR, 0.01),
        target=("one mask for all terms, as P0 prints it", errors(published)),
        positive=("the same without masks", errors(plain)),
        negative=("this plan's masks, one a term", errors(masked)),
        remark="about P0's masks as printed; this plan draws a mask for every term, and does not have this leak",
    )


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_line(guarantee, 6) else "the plan has no real-valued masks"


EXPERIMENT = Experiment(
    "real-valued-masks",
    "Uploads under the papers' masks: read as they are, told apart, and subtracted from each other",
    (6,),
    _applies,
    _float_masks,
    weight=10.0,
)
