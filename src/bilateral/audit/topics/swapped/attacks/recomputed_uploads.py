"""What a client would upload if it trained on a given batch: its half of the protection, which is public, run again.

It takes the model that was sent. In the published cross entropy the half asks for a softmax on the way: then only the
server can do this, which answers as it did, with its secrets and the blinders that its own answer of that round shows.
Guarantee (test_the_clients_upload_is_recomputed_bit_for_bit): for the batch that the client did train on, and without
dropout, this is its upload, bit for bit, or in the published cross entropy to a few roundings of float32.
"""

from __future__ import annotations

import torch

from bilateral.audit.views import Facts, View
from bilateral.data import Split
from bilateral.learning.halves import ClientHalf
from bilateral.protections.groundwork import ClientBasis
from bilateral.protocols.messages import Message, RoundModel, Upload
from bilateral.protocols.objective import plain_objective
from bilateral.protocols.perturb import cross_entropy
from bilateral.protocols.perturb.messages import SoftmaxQuery, SoftmaxReply
from bilateral.randomness import SeededRandomness


def needs_answers(facts: Facts) -> bool:
    """Whether clients ask the server in the middle of a round."""
    return facts.plan.chosen.asks(facts.loss)


class Rehearsal:
    """Clients' halves, built once for a run."""

    def __init__(self) -> None:
        self._halves: dict[str, ClientHalf] = {}

    def upload(self, view: View, round_index: int, client: str, batch: Split, weight: int) -> Upload:
        """The upload of this client in this round if it trained on `batch` with `weight`."""
        model = view.message(RoundModel, round_index=round_index)
        assert model is not None, f"no model of round {round_index} in this view"
        if client not in self._halves:
            self._halves[client] = _client_half(view.facts, client, model)
        half = self._halves[client]
        with torch.random.fork_rng(devices=[]):
            reply: Message | None = half.train(model, batch.inputs, batch.targets, weight)
        if isinstance(reply, SoftmaxQuery):
            reply = half.receive(_answer(view, client, reply))
        assert isinstance(reply, Upload)
        return reply


def _client_half(facts: Facts, client: str, model: RoundModel) -> ClientHalf:
    # Its blinders cancel in its upload, whatever they are.
    draws = SeededRandomness(0, "recomputed uploads", client)
    network, objective = facts.network(model.parameters), plain_objective(facts.loss)
    basis = ClientBasis(client, network, facts.graph, facts.plan, objective, draws)
    return facts.plan.chosen.halves.make_client(basis)


def _answer(view: View, client: str, query: SoftmaxQuery) -> SoftmaxReply:
    """The server's answer to a question that it was not asked, with the blinders of the one that it was."""
    secrets = view.server_round(query.round_index).secrets
    told = view.message(SoftmaxReply, round_index=query.round_index, receiver=client)
    assert secrets is not None
    assert told is not None
    group_blinders = secrets.group_blinders[secrets.partition]
    sample_blinders = torch.log1p(-told.corrections * group_blinders)
    follows = view.facts.perturbation.noise == "activation"
    return cross_entropy.reply(query, secrets.output_noise, group_blinders, follows, sample_blinders)
