"""Whose sample, by the questions of the cross-entropy exchange: masks do not cover them (ledger lines 8 and 10).

A question has a row a sample, and the row follows from the sample and the model: its softmax (three classes or more),
and with activation noise the sum of its head inputs. A server that has a sample computes both and looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, has_line
from bilateral.audit.membership_metrics import membership_scores
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.audit.topics.membership.attacks.upload_membership import match_rows
from bilateral.audit.topics.membership.upload_scene import Pair, Scene
from bilateral.audit.topics.model.attacks.group_secrets import ReceivedModel
from bilateral.audit.topics.model.attacks.softmax_exchange import (
    activation_sums,
    naive_softmax_of_query,
    softmax_of_query,
)
from bilateral.protocols.guarantee import Guarantee

NUM_NULL = 60
GATES = (Gate(AUC, 0.85), Gate(TPR_AT_1, 0.2))


@dataclass(frozen=True)
class _Mark:
    """What a row says of its sample: how the server reads it, and how it computes it for a sample that it has."""

    line: int
    attack: str
    adaptive: bool
    seen: str
    read: Callable[[Scene, str], Tensor]
    compute: Callable[[Scene, Tensor], Tensor]


def by_questions(context: Context, scenes: Sequence[Scene], guarantee: Guarantee) -> list[Evidence]:
    """Source inference for each mark that the plan's questions have."""
    by_softmax = "source of a sample by the softmax in the question"
    marks = []
    if has_line(guarantee, 8) and scenes[0].view.facts.num_outputs > 2:
        marks += [
            _Mark(8, by_softmax, False, "each client's question as it comes", _naive_softmax, _softmax),
            _Mark(8, by_softmax, True, "each client's question, its secrets", _read_softmax, _softmax),
        ]
    if has_line(guarantee, 10):
        attack = "source of a sample by the sum of head inputs in the question"
        marks.append(_Mark(10, attack, True, "each client's question, the model that it sent", _read_sums, _sums))
    return [_evidence(context, scenes, mark) for mark in marks]


def _naive_softmax(scene: Scene, client: str) -> Tensor:
    return naive_softmax_of_query(scene.view, scene.round_index, client)


def _read_softmax(scene: Scene, client: str) -> Tensor:
    return softmax_of_query(scene.view, scene.round_index, client)


def _softmax(scene: Scene, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.softmax(scene.network(inputs).double(), 1)


def _read_sums(scene: Scene, client: str) -> Tensor:
    return activation_sums(scene.view, scene.round_index, client).double()[:, None]


def _sums(scene: Scene, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return ReceivedModel.of(scene.view, scene.round_index, inputs).run(inputs).carrier[:, None]


def _evidence(context: Context, scenes: Sequence[Scene], mark: _Mark) -> Evidence:
    target, positive, null = [], [], []
    for scene in scenes:
        own = mark.compute(scene, scene.candidates.inputs)
        target.append(_pair(scene, own, [mark.read(scene, name) for name in scene.clients]))
        positive.append(_pair(scene, own, [own[scene.owner == number] for number in range(len(scene.clients))]))
        null += _null_pairs(context, scene, own, mark, -(-NUM_NULL // len(scenes)))
    return with_controls(
        mark.line,
        "curious server",
        mark.attack,
        mark.seen,
        GATES,
        target=Condition("this client's batch or another's", membership_scores(target)),
        positive=Condition("questions in the clear: exact by construction", membership_scores(positive)),
        negative=Condition("questions about samples of the server's own", membership_scores(null)),
        adaptive=mark.adaptive,
        paired=False,
        remark="masks do not cover the question",
    )


def _pair(scene: Scene, own: Tensor, rows: Sequence[Tensor]) -> Pair:
    return scene.source_pair(torch.stack([match_rows(of_client, own) for of_client in rows]))


def _null_pairs(context: Context, scene: Scene, own: Tensor, mark: _Mark, count: int) -> list[Pair]:
    rows = mark.compute(scene, scene.unrelated_samples.inputs)
    draws = context.randomness("upload membership", "unrelated questions", mark.line, scene.number)
    picked = (draws.uniform(count, len(scene.clients), scene.batch_size) * len(rows)).long()
    return [_pair(scene, own, [rows[of_client] for of_client in trial]) for trial in picked]
