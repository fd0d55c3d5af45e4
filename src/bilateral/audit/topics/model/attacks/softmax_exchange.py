"""What the cross-entropy exchange shows: true softmax values to the client (ledger line 2) and the server (line 8).

Notation of `protocols/perturb/cross_entropy.py`: `z_j = exp(y_hat_j)`, `mu_ij = z_j / z_i + lambda_i` for j != i.

The query alone gives `z` up to a factor, without the client's blinders. With b the class of the largest output (or
one near it) and z_b = 1, row b says `z_j = mu_bj - lambda_b`, and any other row i adds, for a third class k,
`z_i (mu_ib - mu_ik) = 1 - z_k`: linear in the one unknown,

    lambda_b = (mu_bi (mu_ib - mu_ik) - 1 + mu_bk) / (mu_ib - mu_ik + 1)

With two classes there is no third, and the server can only bracket the ratio.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from bilateral.audit.topics.model.attacks.group_secrets import Outputs, ReceivedModel, noise_patterns
from bilateral.audit.views import View
from bilateral.errors import DataError, PlanError
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.perturb.cross_entropy import ClientBlinders, unblind
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.terms import ForwardPass, forward

M = TypeVar("M")
_BLINDER_RANGE = (0.1, 10.0)
"""How large the client's blinders are, in units of the smallest exponential that they hide: public."""


def softmax_of_query(view: View, round_index: int, client: str) -> Tensor:
    """Line 8: the softmax of every sample of a client's batch, as the server reads it (samples x classes)."""
    query = _query(view, round_index, client)
    secrets = view.server_round(round_index).secrets
    if secrets is None:
        raise DataError("Without perturbation there is no exchange to read.")
    follows = view.facts.perturbation.noise == "activation"
    return softmax_with_secrets(query, secrets.output_noise, follows_activation=follows)


def softmax_with_secrets(query: SoftmaxQuery, output_noise: Tensor, *, follows_activation: bool) -> Tensor:
    """The same by who holds the round's noise of the outputs."""
    noise = _carrier_of(query, follows_activation=follows_activation)[:, None] * output_noise
    if query.blinded_exponentials.shape[1] == 2:
        difference = bracketed_difference(query.blinded_exponentials) - (noise[:, 1] - noise[:, 0])
        return torch.softmax(torch.stack([torch.zeros_like(difference), difference], 1), 1)
    return torch.softmax(exponentials_of(query.blinded_exponentials).log() - noise, 1)


def naive_softmax_of_query(view: View, round_index: int, client: str) -> Tensor:
    """As if the blinders and the model's noise did their work: a row of the query, normalised."""
    table = _table(_query(view, round_index, client).blinded_exponentials)
    row = table[torch.arange(len(table)), _largest_output(table)]
    return row / row.sum(1, keepdim=True)


def activation_sums(view: View, round_index: int, client: str) -> Tensor:
    """Line 10: the sum of every sample's (scaled) head inputs, one a sample."""
    return _query(view, round_index, client).activation_sum


def softmax_of_reply(view: View, round_index: int, *clients: str) -> dict[str, Tensor]:
    """Line 2: the true softmax of every sample of these clients, from their queries and the server's replies.

    `sum_i p*_i (1 - xi_s q_i) = 1` for each sample, linear in the group blinders xi, which all clients share.
    """
    partition = _model(view, round_index).partition
    num_groups = int(partition.max()) + 1
    got = {
        client: unblind(_reply(view, round_index, client), _blinders(view, round_index, client)) for client in clients
    }
    blinded = torch.cat([one.blinded for one in got.values()])
    corrected = torch.cat([one.corrected for one in got.values()])
    coefficients = torch.stack([corrected[:, partition == s].sum(1) for s in range(num_groups)], 1)
    xi = torch.linalg.lstsq(coefficients, (blinded.sum(1) - 1)[:, None], driver="gelsd").solution[:, 0]
    return {client: one.blinded - xi[partition] * one.corrected for client, one in got.items()}


def naive_softmax_of_reply(view: View, round_index: int, client: str) -> Tensor:
    """The blinded softmax taken for the true one: what the exchange is meant to show."""
    blinded = unblind(_reply(view, round_index, client), _blinders(view, round_index, client)).blinded
    return blinded / blinded.sum(1, keepdim=True)


def softmax_of_own_pass(view: View, round_index: int, client: str, *, told: bool) -> Tensor:
    """Without an exchange: the softmax of the client's batch by its own pass, with the noise or (`told`) without."""
    passed = _own_pass(view, round_index, client)
    outputs = passed.outputs.detach().double()
    if told:
        message = _model(view, round_index)
        noise = message.group_secrets.double()[message.partition] * message.output_directions.double()
        sums = passed.head_inputs.detach().double().sum(1)
        carrier = sums if view.facts.perturbation.noise == "activation" else torch.ones_like(sums)
        outputs = outputs - carrier[:, None] * noise
    return torch.softmax(outputs, 1)


def outputs_from_exchange(view: View, round_index: int, client: str) -> Outputs:
    """The true outputs for *any* input, without a label: `secrets_from_exchange` takes the noise off."""
    received = ReceivedModel.of(view, round_index, view.batches[client, round_index].inputs)
    return received.without_noise(secrets_from_exchange(view, round_index, client))


def secrets_from_exchange(view: View, round_index: int, client: str) -> Tensor:
    """The round's group secrets from the softmax values that line 2 reads; three classes or more.

    `log p = y_hat - gamma * pattern` up to a number a sample. Errors of log p are 1 / p, so its weight is p squared.
    """
    query, message = _query(view, round_index, client), _model(view, round_index)
    softmax = softmax_of_reply(view, round_index, client)[client].clamp_min(1e-9)
    noise = noise_patterns(message.output_directions.double(), message.partition, _carrier(view, query))
    residual = exponentials_of(query.blinded_exponentials).log() - softmax.log()
    weights = softmax.square()

    def centred(values: Tensor) -> Tensor:
        return (values - (values * weights).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)) * weights.sqrt()

    flat = centred(noise).flatten(1)
    solved: Tensor = torch.linalg.lstsq(flat.T, centred(residual).flatten()[:, None], driver="gelsd").solution[:, 0]
    return solved


def exponentials_of(blinded: Tensor) -> Tensor:
    """z of every sample, 1 for the largest: samples x classes, from samples x classes x (classes - 1) and no secret."""
    num_classes = blinded.shape[1]
    if num_classes < 3:
        raise PlanError("With two classes a query has no third exponential.", remedy="Use `bracketed_difference`.")
    mu, each = _table(blinded), torch.arange(len(blinded))
    b = _largest_output(mu)
    own = mu[each, b]  # z_j + lambda_b, and 1 at j = b
    others = own.scatter(1, b[:, None], -torch.inf)
    i = others.argmax(1)  # the second largest output: the best-conditioned row
    k = own.scatter(1, b[:, None], torch.inf).scatter(1, i[:, None], torch.inf).argmin(1)
    gap = mu[each, i, b] - mu[each, i, k]
    blinder = (own[each, i] * gap - 1 + own[each, k]) / (gap + 1)
    absolute = (own - blinder[:, None]).clamp_min(torch.finfo(own.dtype).tiny).scatter(1, b[:, None], 1.0)
    # Small ones are exact to 1e-16 of the largest so far; their own rows have them to 1e-16 of themselves.
    third = torch.where(torch.arange(num_classes) == k[:, None], i[:, None], k[:, None])  # a class beside b and j
    gaps = mu.gather(2, b[:, None, None].expand(-1, num_classes, 1)) - mu.gather(2, third[:, :, None])
    relative = (1 - absolute.gather(1, third)) / gaps[:, :, 0]
    found = torch.where((absolute < 0.1) & (relative > 0), relative, absolute)
    return found / found.max(1, keepdim=True).values


def bracketed_difference(blinded: Tensor) -> Tensor:
    """Two classes: the middle of the bounds for `y_hat_1 - y_hat_0` that the two numbers of a query leave."""
    low, high = (1 + edge for edge in _BLINDER_RANGE)
    above, below = blinded[:, 0, 0], blinded[:, 1, 0]
    smallest, largest = (above / high).maximum(low / below), (above / low).minimum(high / below)
    return 0.5 * (smallest.log() + largest.log())


def _blinders(view: View, round_index: int, client: str) -> ClientBlinders:
    """lambda: a client knows its own. From its query, or with two classes from its own pass over its own batch."""
    query = _query(view, round_index, client).blinded_exponentials
    from_query = query.shape[1] > 2
    log_z = (
        exponentials_of(query).log() if from_query else _own_pass(view, round_index, client).outputs.detach().double()
    )
    ratios = torch.exp(log_z[:, None, :] - log_z[:, :, None])
    # The smallest exponential of a row is the one that the blinder does not drown in.
    smallest = (ratios + torch.diag_embed(torch.full_like(log_z, torch.inf))).argmin(2, keepdim=True)
    return ClientBlinders((_table(query) - ratios).gather(2, smallest)[:, :, 0].clamp_min(0))


def _own_pass(view: View, round_index: int, client: str) -> ForwardPass:
    """The noisy outputs and head inputs, by the very pass that the client made."""
    parameters, facts = _model(view, round_index).parameters, view.facts
    model = LocalModel(facts.network(parameters), facts.graph, channels_last=facts.plan.training.channels_last)
    model.load(parameters)
    return forward(model, client, round_index, view.batches[client, round_index].inputs)


def _table(blinded: Tensor) -> Tensor:
    """(n, c, c - 1) -> (n, c, c) with 1 on the diagonal, where nothing was sent."""
    n, c, _ = blinded.shape
    table = torch.ones(n, c, c, dtype=blinded.dtype)
    table[:, ~torch.eye(c, dtype=torch.bool)] = blinded.reshape(n, -1)
    return table


def _largest_output(mu: Tensor) -> Tensor:
    """All exponentials of the largest output's row are at most 1, and no other row's; blinders can hide a near tie."""
    return mu.max(2).values.argmin(1)


def _carrier(view: View, query: SoftmaxQuery) -> Tensor:
    return _carrier_of(query, follows_activation=view.facts.perturbation.noise == "activation")


def _carrier_of(query: SoftmaxQuery, *, follows_activation: bool) -> Tensor:
    return query.activation_sum if follows_activation else torch.ones(len(query.blinded_exponentials)).double()


def _model(view: View, round_index: int) -> PerturbedModel:
    return _expected(view.message(PerturbedModel, round_index=round_index), "perturbed model", round_index)


def _query(view: View, round_index: int, client: str) -> SoftmaxQuery:
    return _expected(view.message(SoftmaxQuery, round_index=round_index, sender=client), "query", round_index)


def _reply(view: View, round_index: int, client: str) -> SoftmaxReply:
    return _expected(view.message(SoftmaxReply, round_index=round_index, receiver=client), "reply", round_index)


def _expected(message: M | None, what: str, round_index: int) -> M:
    if message is None:
        raise DataError(f"Expected a {what} in round {round_index}, saw none.", remedy="Record that round (`keep`).")
    return message
