"""Can the server read clients' weights (how many samples each has) off the sums that it is entitled to?

The positive control is the sum of the same uploads as they are: until the last bits of uploads were drawn at random
(`mask/last_bits`), a masked sum was exactly that. The negative control multiplies every client's upload by a number
that is no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bilateral.audit.attacks.weights_in_sums import guess_weight, odd_part
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiment import Context, Experiment, has_subject
from bilateral.audit.recording import Recording
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.threat import server_view
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Upload

READ: Final = Metric("sums that tell a client's weight", "high", is_rate=True, digits=2)
_ROUNDS: Final = 12
Sums = Sequence[NDArray[np.float64]]


def _weights_of_clients(context: Context) -> list[Evidence]:
    plan = context.plan.with_settings({"training.rounds": _ROUNDS})
    context.on_progress(0.0, "a masked run, and the same without masks")
    masked = context.record(plan)
    bare = context.record(plan.with_settings({"aggregation.masks": "none"}))
    weights = {odd_part(message.weight) for _, message in server_view(bare).messages(Upload)} - {1}
    largest = max(one.total.total_weight for one in masked.server_rounds)
    context.on_progress(0.5, "looking for weights")

    def read(what: str, sums: Sums) -> Condition:
        return Condition(what, (Scores(READ, tuple(float(guess_weight(s, largest) in weights) for s in sums)),))

    found = Evidence(
        tests="single uploads",
        adversary="curious server",
        attack="a weight that makes float32s of a sum",
        adaptive=True,
        seen="the sums, and how many samples all clients have together",
        target=read("sums of this plan", _sums(masked)),
        positive=read("sums of the same uploads, exact", _sums(bare)),
        negative=read("uploads times numbers that are no weights", _without_weights(context, bare)),
        gates=(Gate(READ, 0.9),),
        remark="needs coordinates to which one client alone contributes, and weights that are no powers of two",
    )
    context.on_progress(1.0, "weights done")
    return [found]


def _sums(recording: Recording) -> Sums:
    return [one.total.terms.double().numpy().ravel() for one in recording.server_rounds]


def _without_weights(context: Context, bare: Recording) -> Sums:
    totals: dict[int, NDArray[np.float64]] = {}
    for entry, upload in server_view(bare).messages(Upload):
        factor = upload.weight * float(context.randomness("factor", entry.sender, entry.round_index).uniform(1))
        part = factor * upload.terms.double().numpy().ravel()
        totals[entry.round_index] = totals.get(entry.round_index, 0.0) + part
    return list(totals.values())


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_subject(guarantee, "single uploads"):
        return "the plan does not claim to hide single uploads"
    return "" if plan.noise.mechanism == "none" else "every client has the same weight"


EXPERIMENT = Experiment(
    "weights-of-clients",
    "Weights of clients, read off the sums by what they are divisible by",
    _applies,
    _weights_of_clients,
    weight=4.0,
)
