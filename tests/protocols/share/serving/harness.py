"""Three parties of one question in one process, and all that they tell each other."""

from dataclasses import dataclass, field

import torch

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.served import compile_served
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.serving.parties import (
    AnsweringParty,
    AskingParty,
    deal,
    masked_weights,
    model_of,
    weight_masks,
    with_limits,
)
from bilateral.protocols.share.serving.terms import QuestionTerms
from bilateral.randomness import SeededRandomness


@dataclass
class Asked:
    terms: QuestionTerms
    answering: AnsweringParty
    asking: AskingParty
    model: object
    weights: tuple
    dealt: tuple
    told_by_server: list = field(default_factory=list)
    told_by_client: list = field(default_factory=list)
    errors: dict = field(default_factory=dict)

    def run(self, inputs):
        """The answers; None if a number left its range (`errors` says who found out)."""
        first, second = Speaker(self.answering.work(), "client"), Speaker(self.asking.work(inputs), "server")
        while not (first.is_done and second.is_done):
            self._carry("client", second, first, self.told_by_client)
            self._carry("server", first, second, self.told_by_server)
            if len(self.errors) == 2:
                return None
        return second.result

    def _carry(self, name, speaker, other, kept):
        told = speaker.take_told()
        kept.extend(told)
        try:
            other.hear(told, must_lead=False)
        except NumericalRangeError as error:
            self.errors["server" if name == "client" else "client"] = error


def asked(net, examples, count, reveal="logits", seed=0):
    """A question about `count` samples to `net`. `examples`: of its owner."""
    draws = SeededRandomness(seed, "question")
    session, with_server, with_client, common, own = (draws.child("seed", n).random_bytes(32) for n in range(5))
    served = compile_served(net, examples)
    terms = QuestionTerms(served.circuit, count, reveal=reveal)
    model = with_limits(terms, model_of(terms, served.layers), examples)
    masks = weight_masks(served.circuit, session)
    weights, dealt = masked_weights(model, masks), deal(terms, masks, with_server, with_client)
    answering = AnsweringParty(terms, model, dealt, with_server, common, own, dealer="dealer")
    asking = AskingParty(terms, weights, with_client, common, first="server")
    return Asked(terms, answering, asking, model, weights, dealt)


def samples(count, *shape, seed=0, scale=1.0):
    return scale * torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
