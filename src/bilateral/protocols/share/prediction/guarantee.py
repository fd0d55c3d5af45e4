"""What secret-shared prediction claims, and what it does not hide."""

from __future__ import annotations

from typing import Final

from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, HARDENED, SEALED, ComparisonStyle

_ASSUMPTION: Final = (
    "all three parties follow the protocol, no two of them collude, identity keys are pinned, and nobody breaks X25519 "
    "(a quantum computer would, years later too, from recorded messages)"
)
_SIZES: Final = Leak(
    "sizes of compared numbers, blurred and in random order; many chosen queries sharpen them", "querying client", 5
)
_SIGNS: Final = Leak(
    "the sign and the blinded size of every activation, in its place, and with them single answers",
    "querying client",
    5,
)


def guarantee(num_answerers: int, style: ComparisonStyle = DEFAULT_STYLE) -> Guarantee:
    """Of queries that `num_answerers` clients answer.

    Sealed comparisons show nobody anything. Hardened ones show sizes; the published ones signs, which tell single
    answers apart under one sum: our audit refutes that claim for them.
    """
    claims = [
        Claim("shared prediction, server", "queries, weights, activations and logits", "server", _ASSUMPTION),
        Claim(
            "shared prediction, answering party", "queries, activations and logits", "answering clients", _ASSUMPTION
        ),
    ]
    leaks = [
        Leak("the architecture of every network, and who asks whom how often", "all three", 13),
        Leak(
            "the sum of the logits: many queries copy a network, sums over different answerers differ by one",
            "querying client",
            14,
        ),
    ]
    if style is SEALED:
        hidden = "activations: signs, sizes, zeros and places; weights beyond what the sum of the logits tells"
        claims.append(Claim("activations", hidden, "querying client", _ASSUMPTION))
        if num_answerers > 1:
            claims.append(_single("each answerer's logits, beyond what their sum tells"))
        return Guarantee("secret-shared prediction", tuple(claims), tuple(leaks))
    if style is HARDENED:
        hidden = "signs of activations and where they are"
        claims.append(Claim("signs of activations", hidden, "querying client", _ASSUMPTION))
        if num_answerers > 1:
            claims.append(_single("each answerer's logits, beyond what their sum and the sizes of line 5 tell"))
        return Guarantee("secret-shared prediction, judged comparisons", tuple(claims), (_SIZES, *leaks))
    return Guarantee("secret-shared prediction, as published", tuple(claims), (_SIGNS, *leaks))


def _single(hidden: str) -> Claim:
    return Claim("single answers", hidden, "querying client", _ASSUMPTION)
