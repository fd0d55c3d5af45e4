"""What a client knows about the softmax that it is told, and can hold the server to.

Its own noisy outputs are `y_hat = y + gamma_s pattern_s`, where `pattern` is public (`alpha r_a` with activation noise,
`r_a` with offset noise) and only the m group secrets gamma are the server's. So an honest answer p obeys, for every
sample and up to a number a sample, `log p = y_hat - gamma_s pattern_s`: n (c - 1) equations with m unknowns.

Formal guarantee (tests/protocols/test_softmax_check.py): an honest answer passes, for outputs and noise as large as
the exchange allows; one that is no softmax of `y_hat` under *any* group secrets is refused. So a server can choose m
numbers a client and round, and with n (c - 1) <= m it is bound by nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.errors import ProtocolError

TOLERANCE = 1e-6
"""Of log p. Honest answers have it to 1e-11 whatever the size of p: no row of the exchange cancels (decision 4)."""


def check_softmax(name: str, softmax: Tensor, outputs: Tensor, patterns: Tensor) -> None:
    """Refuse an answer that no group secrets explain. `patterns`: groups x samples x outputs; all in float64."""
    off = float((softmax.sum(1) - 1.0).abs().max())
    if not off <= TOLERANCE:
        raise _refusal(name, f"probabilities of a sample miss a sum of 1 by {off:.2g}")
    noise, known = _centred(outputs - softmax.log()), _centred(patterns)
    secrets = torch.linalg.lstsq(known.flatten(1).T, noise.flatten()[:, None], driver="gelsd").solution[:, 0]
    # All classes count alike: with p as weights, an answer of zeros and ones would pass whatever the outputs are.
    worst = float((noise - torch.einsum("s,snc->nc", secrets, known)).abs().max())
    if not worst <= TOLERANCE:
        raise _refusal(name, f"in the exponent it is {worst:.2g} away from every softmax of the outputs")


def _centred(values: Tensor) -> Tensor:
    """Without the number a sample that a softmax does not tell."""
    return values - values.mean(-1, keepdim=True)


def _refusal(name: str, what: str) -> ProtocolError:
    return ProtocolError(
        f"{name}: the server's softmax answer is not about this model and batch: {what}.",
        remedy="The server is broken or dishonest: nothing is uploaded in this round.",
    )
