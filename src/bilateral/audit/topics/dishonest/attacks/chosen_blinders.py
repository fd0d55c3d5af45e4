"""A server that chooses the blinders of the softmax exchange instead of drawing them (ledger line 16).

Terms `blinded` and `blinded_direction` of an upload take `p~ = p* q`, with `q = (1 - exp(d)) / xi`, and the server
draws `d` for every sample and class. With d = 0 a sample is in none of these terms. So a server that sets d = 0 for all
samples of a round but one finds *that sample's gradient alone* in a sum over all clients, masks or not. No answer of it
is wrong: clients get what they need, the sum recovers exactly, and every d is within the range of honest ones.

The server sees the softmax s (line 8), so it may choose the direction as well. It takes `1 - exp(-d_i) = eta` for all
classes but the likeliest one, k, and `1 - exp(-d_k) = -eta (1 - s_k) / s_k`: what it reads is eta times the gradient of
the cross entropy with the label k, which every attack on single gradients understands.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bilateral.audit.topics.model.attacks.softmax_exchange import softmax_with_secrets
from bilateral.learning.halves import ServerHalf
from bilateral.protocols.messages import Aggregate
from bilateral.protocols.perturb import cross_entropy
from bilateral.protocols.perturb.messages import SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.secrets import RoundSecrets
from bilateral.protocols.perturb.settings import PerturbationSettings

_MOST_ETA = 0.5


def answer_about(
    query: SoftmaxQuery, secrets: RoundSecrets, settings: PerturbationSettings, sample: int | None
) -> SoftmaxReply:
    """The server's reply to a query that puts one sample of the batch into the terms that it reads; None: no sample."""
    follows = settings.noise == "activation"
    softmax = softmax_with_secrets(query, secrets.output_noise, follows_activation=follows)
    chosen = torch.zeros_like(softmax)
    if sample is not None:
        chosen[sample] = towards_likeliest(softmax[sample])
    blinders_of_output = secrets.group_blinders[secrets.partition]
    return cross_entropy.reply(query, secrets.output_noise, blinders_of_output, follows, chosen)


def towards_likeliest(softmax: Tensor) -> Tensor:
    """Blinders of one sample, all within the range of drawn ones."""
    likeliest = int(softmax.argmax())
    odds = float((1 - softmax[likeliest]) / softmax[likeliest])
    eta = min(_MOST_ETA, 0.99 * math.expm1(cross_entropy.LARGEST_BLINDER) / max(odds, 1e-12))
    blinders = torch.full_like(softmax, -math.log1p(-eta))
    blinders[likeliest] = -math.log1p(eta * odds)
    return blinders


def gradient_of_chosen(half: ServerHalf, settings: PerturbationSettings, total: Aggregate) -> Tensor:
    """The gradient of the chosen sample in a round's sum, up to a positive factor, in the true model's coordinates."""
    chosen = torch.tensor([name.startswith("blinded") for name in term_names(settings)])
    return half.recover(replace(total, terms=total.terms * chosen[:, None])).gradient
