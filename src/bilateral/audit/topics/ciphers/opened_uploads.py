"""Single uploads, out of sums of ciphertexts (ledger line 19): by real parties of the plan, from round to round.

Where clients open sums, the server is a dishonest one: it asks them for one upload, and no sum (such a round is lost,
and looks like any that too few answered). What it gets is also what a curious server has if as many clients tell it
their keys. Under HybridAlpha it is curious, asks as it should, and computes.

The truth is the upload as the client's half makes it, noise and all. Uploads are compared without their mean, which
mixing does not give.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bilateral.audit.evidence import Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line
from bilateral.audit.scores import Metric
from bilateral.audit.topics.ciphers.attacks.opened_uploads import AskingForOne, read_by_mixing
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.errors import NotAuditableError, ProtocolError
from bilateral.learning.client import TrainingClient, invited_clients
from bilateral.learning.encrypted_aggregation import EncryptedAggregation
from bilateral.protocols.ciphers.server import CipherServer
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Upload

LINE = 19
READ_ERROR = Metric("relative error of the upload", "low", digits=4)
NUM_TRIALS = 12


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    return "" if plan.traits.sums_ciphertexts and has_line(guarantee, LINE) else "the plan sums no ciphertexts"


def _run(context: Context) -> list[Evidence]:
    plan = context.plan.with_settings({"training.rounds": NUM_TRIALS})
    federation = context.federation(plan)
    blueprint = make_blueprint(plan, federation)
    training = blueprint.server()
    aggregation = training.aggregation
    if not isinstance(aggregation, EncryptedAggregation):
        raise NotAuditableError(f"{blueprint.name} sums ciphertexts in a way that no attack here is written for.")
    server = aggregation.server
    exchange = blueprint.local_exchange(lambda *_: None)
    read: list[Tensor] = []
    true: list[Tensor] = []
    other: list[Tensor] = []
    for round_index in range(NUM_TRIALS):
        context.on_progress(round_index / NUM_TRIALS, "asking for one upload")
        present = invited_clients(federation.names, plan.federation.participation, plan.seed, round_index)
        victim, stranger = present[round_index % len(present)], present[(round_index + 1) % len(present)]
        asking = AskingForOne(exchange, victim, instead=not server.system.dealer_opens)
        lost = False
        try:
            training.advance(round_index, present, asking)
        except ProtocolError:  # it asked for something else: that round has no sum, and the model is as it was
            lost = True
        assert lost or server.system.dealer_opens or len(asking.parts) == 1, "a wrong opening went through"
        read.append(_read(server, asking, victim))
        clients = exchange.clients
        true.append(_true(clients[victim], asking, round_index))
        other.append(_true(clients[stranger], asking, round_index))
    mixing = server.system.dealer_opens
    return [
        with_controls(
            LINE,
            "curious server" if mixing else "dishonest server",
            "mixing ciphertexts of different values" if mixing else "one upload in place of the sum",
            "encrypted uploads, and the authority's key for their sum" if mixing else "parts of openings",
            Gate(READ_ERROR, 0.01),
            target=("uploads of this plan", _errors(read, true)),
            positive=("the same without encryption", _errors(true, true)),
            negative=("another client's upload", _errors(other, true)),
        )
    ]


def _read(server: CipherServer, asking: AskingForOne, victim: str) -> Tensor:
    """What the server has of this upload, as numbers."""
    opener, form = server.opener, server.form
    if server.system.dealer_opens:
        (part,) = asking.parts.values()
        return read_by_mixing(asking.uploads, part, victim, server.num_values, form.bits) * 2.0**-form.fraction_bits
    alone = {victim: asking.uploads[victim]}
    integers = opener.open(alone, asking.uploads[victim], asking.parts, server.num_values)
    return form.decode(integers) / server.weight_of(victim)


def _true(client: object, asking: AskingForOne, round_index: int) -> Tensor:
    assert isinstance(client, TrainingClient)
    batch = client.batch(round_index)
    upload = client.half.train(asking.model, batch.inputs, batch.targets, client.weight)
    assert isinstance(upload, Upload)
    return torch.cat([upload.terms.double().flatten(), upload.statistics.double().flatten()])


def _errors(found: Sequence[Tensor], true: Sequence[Tensor]) -> list[float]:
    return [_error(one - one.mean(), truth - truth.mean()) for one, truth in zip(found, true, strict=True)]


def _error(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm().clamp_min(1e-300))


EXPERIMENT = Experiment(
    "opened-uploads", "Single uploads, opened out of sums of ciphertexts", (LINE,), _applies, _run, weight=20.0
)
