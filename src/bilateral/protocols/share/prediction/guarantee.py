"""What secret-shared prediction claims, and what it does not hide."""

from __future__ import annotations

from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.share.gates.styles import HARDENED, ComparisonStyle

_ASSUMPTION = (
    "all three parties follow the protocol, no two of them collude, identity keys are pinned, and nobody breaks X25519 "
    "(a quantum computer would, years later too, from recorded messages)"
)


def guarantee(num_answerers: int, style: ComparisonStyle = HARDENED) -> Guarantee:
    """Of queries that `num_answerers` clients answer.

    The published comparison shows signs, which tell single answers apart under one sum: our audit refutes that claim.
    """
    claims = [
        Claim("shared prediction, server", "queries, weights, activations and logits", "server", _ASSUMPTION),
        Claim(
            "shared prediction, answering party", "queries, activations and logits", "answering clients", _ASSUMPTION
        ),
        Claim("signs of activations", "signs of activations and where they are", "querying client", _ASSUMPTION),
    ]
    if num_answerers > 1:
        beyond = "each answerer's logits, beyond what their sum and the sizes of line 5 tell"
        claims.append(Claim("single answers", beyond, "querying client", _ASSUMPTION))
    leaks = [
        Leak("the architecture of every network, and who asks whom how often", "all three", 13),
        Leak(
            "the sum of the logits: many queries copy a network, sums over different answerers differ by one",
            "querying client",
            14,
        ),
    ]
    if style is HARDENED:
        leaks.insert(
            0,
            Leak(
                "sizes of compared numbers, blurred and in random order; many chosen queries sharpen them",
                "querying client",
                5,
            ),
        )
        return Guarantee("secret-shared prediction", tuple(claims), tuple(leaks))
    shown = "the sign and the blinded size of every activation, in its place, and with them single answers"
    leaks.insert(0, Leak(shown, "querying client", 5))
    return Guarantee("secret-shared prediction, as published", tuple(claims[:2]), tuple(leaks))
