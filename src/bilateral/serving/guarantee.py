"""What answers on shares claim, what they do not hide, and what those learn who tell each other what they know."""

from __future__ import annotations

from typing import Final

from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.serving.terms import QuestionTerms, Reveal

_ANSWER: Final = {
    "logits": "its own logits, off by noise below 2^-20",
    "class": "the class of its own inputs (of equal logits, the first)",
}


def questions_that_read(circuit: Circuit, reveal: Reveal) -> int:
    """So many, about, give the whole model to a client that does not follow the protocol.

    It shifts its own shares around a ReLU, so that answers are linear in the parameters, and gets as many equations a
    question as there are outputs. Where classes are revealed it has the count of sums beyond their limits, which is
    taken for one equation, to be on the safe side (a review needed 14 questions for a number to 20 bits).
    """
    terms = QuestionTerms(circuit, 1)
    return -(-terms.num_parameters // (terms.num_outputs if reveal == "logits" else 1))


def serving_guarantee(dealer: str, circuit: Circuit, reveal: Reveal, limit: int) -> Guarantee:
    """Of a service that reveals at most `reveal` of this circuit's answers, for `limit` questions of each client."""
    enough = questions_that_read(circuit, reveal)
    follows = "all parties follow the protocol, and AES streams look random"
    claims = (
        Claim(
            "sealed model",
            f"the model: a client learns {_ANSWER[reveal]}, and can make up all else that it receives",
            "asking clients",
            f"{dealer} does not tell it what it dealt to the server; {follows}",
        ),
        Claim(
            "sealed batch",
            "inputs, activations and answers: the server learns how many questions were asked, and by whom",
            "server",
            f"{dealer} does not tell it what it dealt to that client; whoever runs `serve` keeps no copy of the kits "
            f"that it made; {follows}",
        ),
        Claim(
            "sealed dealing",
            "everything: it receives no message that depends on a weight, an input or an answer",
            "dealer",
            "it follows the protocol; one that deals wrongly makes wrong answers, and nobody notices",
        ),
    )
    leaks = (
        Leak("the architecture, and who asks how many questions when", "everyone", 13),
        Leak(
            f"the answers: enough of them copy a model, so each client has {limit} questions, counted on disk",
            "asking clients",
            14,
        ),
        Leak(
            f"the whole model, within some {enough} questions (parameters / numbers that a question tells); "
            f"{limit} questions are {'enough for that' if limit >= enough else 'fewer, for one client'}, and clients "
            "that put theirs together have more",
            "a client that does not follow the protocol",
            14,
        ),
        Leak("whether a number left its range, and of how many random sums: such a question has no answer",
             "server and asking client", 17),
        Leak("any number of the other side's that is compared (activations, logits where only classes are revealed): "
             "it shifts its shares, and the count of sums beyond their limits tells it on which side of its limit the "
             "number is, some bits a question; the other side sees no count if it told its own first",
             "a client or a server that does not follow the protocol", 17),
        Leak("the model, if they tell each other what they know", f"a client and {dealer}", 17),
        Leak("that client's inputs and answers, if they tell each other what they know",
             f"the server and {dealer}", 17),
        Leak(f"clients' inputs and answers: it drew the secret identities of {dealer} and the clients, and whoever has "
             "a copy of these kits deals in that name, unnoticed", "a server that kept a copy of the kits", 17),
    )  # fmt: skip
    return Guarantee("answering on shares", claims, leaks)
