"""What sealed training claims, what it does not hide, and what those learn who tell each other what they know."""

from __future__ import annotations

from typing import Final

from bilateral.protocols.guarantee import Claim, Guarantee, Leak

LINE: Final = 17
"""Of the ledger: who must not collude, and what is public."""
CRAFTED_LINE: Final = 18
"""And what a server reads that crafts its models."""
COLLUSION: Final = (
    ("client alone, dealer alone, several clients without their dealers", "nothing"),
    ("server alone", "the sum of the gradients, and what follows from it (line 12)"),
    ("a client and its dealer of a round", "that round's model"),
    ("the server and a client's dealer of a round", "that client's batch of that round"),
)
"""Who, together, learns what."""


def sealed_guarantee(dealer: str | None) -> Guarantee:
    """Below the masks. `dealer`: a named party that deals for all."""
    if dealer is None:
        other = "another participant, drawn in each round from what all are shown"
        whom, batch = "a client and the one that deals for it", "the server and a client's dealer"
    else:
        other, whom, batch = f"{dealer}, which has no data", f"a client and {dealer}", f"the server and {dealer}"
    follows = "all parties follow the protocol, AES streams look random, numbers stay in their range"
    claims = (
        Claim(
            "sealed model",
            "the model and every gradient: what a client receives is uniform to it, whatever the weights are",
            "clients",
            f"its dealer ({other}) does not tell it what it dealt to the server; {follows}",
        ),
        Claim(
            "sealed batch",
            "every single client's batch, activations and gradient; it learns the sum of the gradients",
            "server",
            f"no dealer ({other}) tells it what it dealt to that client; masks hold what they claim; {follows}",
        ),
        Claim(
            "sealed dealing",
            "everything: it receives no message that depends on a weight, a batch or a gradient",
            "dealer",
            "it follows the protocol; one that deals wrongly makes a wrong sum, and nobody notices",
        ),
    )
    leaks = (
        Leak("the architecture, the loss, and every client's number of samples and size of batches", "everyone", LINE),
        Leak("the model of a round, if they tell each other what they know", whom, LINE),
        Leak("that client's batch of a round, if they tell each other what they know", batch, LINE),
        Leak("a count at the end of each step: who shifts its shares can make it depend on a number of the other's",
             "a client, and a server, that do not follow the protocol", LINE),
        Leak("how the last place of shared numbers was rounded, as far as a sum shows it", "server", LINE),
        Leak("samples out of the sum, by a model that it crafts for that, and one client's gradient, by sending the "
             "others other weights: clients see none", "a server that does not follow the protocol", CRAFTED_LINE),
    )  # fmt: skip
    return Guarantee("sealed training", claims, leaks)
