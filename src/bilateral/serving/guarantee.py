"""What answers on shares claim, what they do not hide, and what those learn who tell each other what they know."""

from __future__ import annotations

from typing import Final

from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.share.serving.terms import Reveal

_ANSWER: Final = {
    "logits": "its own logits, off by noise below 2^-20",
    "class": "the class of its own inputs (of equal logits, the first)",
}


def serving_guarantee(dealer: str, reveal: Reveal, limit: int) -> Guarantee:
    """Of a service that reveals at most `reveal`, for `limit` questions of each client."""
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
            f"{dealer} does not tell it what it dealt to that client; {follows}",
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
        Leak("whether a number left its range, and of how many random sums: such a question has no answer",
             "server and asking client", 17),
        Leak("the model, if they tell each other what they know", f"a client and {dealer}", 17),
        Leak("that client's inputs and answers, if they tell each other what they know",
             f"the server and {dealer}", 17),
    )  # fmt: skip
    return Guarantee("answering on shares", claims, leaks)
