"""What ring masks do not hide from the server: sizes of rows that do not fit (11), who takes part and who drops (12).

Line 11 is an active server's, which announces ranges that nothing fits (`RangeProbe`) to the real clients; how many
refusals come by themselves is counted in a run of the plan. Line 12 is read from who talks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from bilateral.audit.evidence import Evidence, Gate, Tried, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.scores import Metric
from bilateral.audit.threat import server_view
from bilateral.audit.topics.masks.attacks.attendance import Presence, presence
from bilateral.audit.topics.masks.attacks.range_probe import RangeProbe
from bilateral.audit.topics.noise.neighbouring_worlds import groundwork_of
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.engine.transcript import Entry, Transcript
from bilateral.errors import ThresholdError
from bilateral.learning.client import invited_clients
from bilateral.learning.exchange import Dropouts, Packet
from bilateral.learning.halves import ServerHalf
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.messages import RangeRefusal
from bilateral.protocols.messages import Message, Question, Upload, UploadShape
from bilateral.randomness import SeededRandomness

SIZE_ERROR = Metric("error of a row's size, in powers of two", "low", digits=2)
PRESENCE_READ = Metric("clients' presence read", "high", is_rate=True, digits=2)
_SIZES = 80
"""Rows of uploads: another client's size is often the same power of two."""
_PARTICIPATION = 0.8
_DROPOUT = 0.25
_ROUNDS = 8
Sizes = dict[tuple[str, int, int], float]
"""The largest |weight * value| by (client, round, row)."""


def _sizes(context: Context) -> Sequence[Evidence]:
    names = context.federation().names
    present = names[: context.plan.federation.num_participants(len(names))]
    rounds = math.ceil(_SIZES / (len(present) * _num_terms(context)))
    context.on_progress(0.0, "announcing ranges that nothing fits")
    told = _probed(context, present, rounds)
    context.on_progress(0.5, "true sizes")
    truth = _true_sizes(context, present, rounds)
    keys = [key for key in truth if key in told]
    passed_on = {name: present[(number + 1) % len(present)] for number, name in enumerate(present)}

    def errors(guessed: Mapping[tuple[str, int, int], float]) -> tuple[float, ...]:
        return tuple(abs(math.log2(guessed[key] / truth[key])) for key in keys)

    dealt = {(name, number, row): told[passed_on[name], number, row] for name, number, row in keys}
    context.on_progress(0.8, "refusals that come by themselves")
    recording = context.record(context.plan.with_settings({"training.rounds": rounds}))
    refusals = len(list(server_view(recording).messages(RangeRefusal)))
    context.on_progress(1.0, "sizes done")
    return [
        with_controls(
            11,
            "dishonest server",
            "announcing tiny ranges",
            "refusals of its openings",
            Gate(SIZE_ERROR, 0.01),
            target=("clients of this plan", errors(told)),
            positive=("uploads without masks: exact by construction", errors(truth)),
            negative=("another client's refusals", errors(dealt)),
            remark=f"a curious server that follows the protocol saw {refusals} refusals in {rounds} rounds",
        )
    ]


def _num_terms(context: Context) -> int:
    return len(context.plan.chosen.term_names(context.federation().problem.loss))


def _probed(context: Context, present: Sequence[str], rounds: int) -> Sizes:
    plan, federation, around = context.plan, context.federation(), groundwork_of(context)
    blueprint = make_blueprint(plan, federation)
    server, exchange = blueprint.server().server, blueprint.local_exchange(_unrecorded)
    shape = UploadShape(_num_terms(context), around.graph.num_parameters, around.graph.num_statistics)
    run_id = SimulatedSecrets(plan.seed, federation.names).run_id
    attacker = RangeProbe(run_id, federation.names, around.mask_settings, shape)
    found: Sizes = {}
    for number in range(rounds):
        told = attacker.probe(number, present, server.start_round, exchange, partial(_answer, server))
        found |= {(name, number, row): size for name, rows in told.items() for row, size in rows.items()}
    return found


def _true_sizes(context: Context, present: Sequence[str], rounds: int) -> Sizes:
    """From the same clients without masks."""
    blueprint = make_blueprint(context.plan.with_settings({"aggregation.masks": "none"}), context.federation())
    server, exchange = blueprint.server().server, blueprint.local_exchange(_unrecorded)
    found: Sizes = {}
    for number in range(rounds):
        packets = dict.fromkeys(present, (server.start_round(number),))
        for name, upload in exchange(number, packets, partial(_answer, server)).items():
            assert isinstance(upload, Upload)
            for row, values in enumerate((*upload.terms, upload.statistics)):
                if values.numel() and bool(values.any()):
                    found[name, number, row] = upload.weight * float(values.double().abs().max())
    return found


def _answer(server: ServerHalf, sender: str, reply: Message) -> Packet:
    return (server.answer(sender, reply),) if isinstance(reply, Question) else ()


def _unrecorded(round_index: int, sender: str, receiver: str, message: Message) -> None:
    """What these runs say is looked at as it comes."""


@dataclass(frozen=True)
class _Attended:
    """A run in which clients stay away and drop out: what the server saw, and what happened."""

    entries: tuple[Entry, ...]
    truth: Mapping[tuple[int, str], Presence]


def _attendance(context: Context) -> Sequence[Evidence]:
    names = context.federation().names
    changes: dict[str, object] = {"training.rounds": _ROUNDS}
    if len(names) >= 4:
        changes["federation.participation"] = min(_PARTICIPATION, context.plan.federation.participation)
    plan = context.plan.with_settings(changes)
    context.on_progress(0.0, "a run with dropouts")
    ours = _attended(context, plan)
    context.on_progress(0.6, "the same without protection")
    bare = _attended(context, undefended(plan))
    states = sorted(ours.truth.values())
    draws = context.randomness("presence")
    guesses = [float(states[draws.integer_below(len(states))] == state) for state in ours.truth.values()]
    context.on_progress(1.0, "presence done")
    return [
        with_controls(
            12,
            "curious server",
            "who talks, and who stops",
            "senders of messages",
            Gate(PRESENCE_READ, 0.95),
            target=_presence_read("this plan", ours, names),
            positive=_presence_read("FedSGD", bare, names),
            negative=("a guess that knows how many", guesses),
            remark=f"{_ROUNDS} rounds; clients die with probability {_DROPOUT:g}; what a sum says about a client, "
            "other attacks measure",
        )
    ]


def _attended(context: Context, plan: RunPlan) -> _Attended:
    federation = context.federation()
    blueprint = make_blueprint(plan, federation)
    dropouts = Dropouts(_DROPOUT, SeededRandomness(plan.seed, "audit dropouts"), max_replies=2)
    transcript = Transcript(keep_messages=True)
    training, exchange = blueprint.server(), blueprint.local_exchange(transcript.record, dropouts)
    truth: dict[tuple[int, str], Presence] = {}
    for number in range(plan.training.rounds):
        present = invited_clients(federation.names, plan.federation.participation, plan.seed, number)
        first = len(transcript.entries)
        with suppress(ThresholdError):  # a round that is lost is seen like any other
            training.advance(number, present, exchange)
        replies = [entry.sender for entry in transcript.entries[first:] if entry.round_index == number]
        most = max((replies.count(name) for name in present), default=0)
        for name in federation.names:
            limit = dropouts.replies_before_death(number, name)
            gone = limit is not None and limit < most
            truth[number, name] = "absent" if name not in present else "dropped" if gone else "stayed"
    return _Attended(tuple(transcript.entries), truth)


def _presence_read(what: str, run: _Attended, names: Sequence[str]) -> Tried:
    rounds = sorted({number for number, _ in run.truth})
    read = {number: presence(run.entries, number, names) for number in rounds}
    return what, [float(read[number][name] == state) for (number, name), state in run.truth.items()]


def _has_ranges(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_line(guarantee, 11) else "the plan has no ranges that adapt"


def _has_sums(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_line(guarantee, 12):
        return "the plan does not sum under masks"
    survives = (plan.traits.spends_budget or not plan.traits.adds_noise) and plan.aggregation.masks != "float"
    return "" if survives else "no client may drop out under pairwise noise"


SIZES = Experiment(
    "sizes-from-refusals",
    "Sizes of uploads, from refusals of ranges that are too small",
    (11,),
    _has_ranges,
    _sizes,
    4.0,
)
PRESENCE = Experiment("presence", "Who takes part and who drops out", (12,), _has_sums, _attendance, 3.0)
EXPERIMENTS = (SIZES, PRESENCE)
