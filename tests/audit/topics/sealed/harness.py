"""A small sealed plan under audit."""

from dataclasses import replace

import torch
from tests.protections.sealed.harness import plan_of

from bilateral.audit.experiment import context_of
from bilateral.audit.topics.sealed.sealed_adversaries import adversaries
from bilateral.audit.topics.sealed.sealed_rounds import play_sealed
from bilateral.audit.topics.swapped.swapped_rounds import table_of


def context_for(**settings):
    """Four clients, the fewest of whom two can be without a dealer among them."""
    small = {"training.batch_size": 4, "model.options": {"width": 8}, "federation.clients": 4}
    return context_of(plan_of(**{**small, **settings}), "smoke", None)


def with_effort(context, **changes):
    return replace(context, effort=replace(context.effort, **changes))


def played(context, num_trials):
    """A run in one of two worlds a round; and who attacks it, by name and by whether it guesses batches."""
    table = table_of(context)
    match = play_sealed(context, table, 0, num_trials, lambda *_: None)
    every = adversaries(table.names[0], table.names, context.plan.named_dealer)
    return match, {(one.name, one.of_batches): one for one in every}


def plain_gradient(recording, round_index):
    """By autograd in float64, over all clients' batches, weighted by samples."""
    parameters = recording.server_round(round_index).parameters
    model = recording.initial.double()
    for (name, parameter), value in zip(
        model.named_parameters(), recording.graph.unflatten(parameters).values(), strict=True
    ):
        assert parameter.shape == value.shape, name
    values = recording.graph.unflatten(parameters)
    named = {name: values[name].detach().clone().requires_grad_() for name in values}
    total = sum(len(share) for share in recording.shares.values())
    lost = 0.0
    for name, share in recording.shares.items():
        batch = recording.batches[name, round_index]
        outputs = torch.func.functional_call(model, named, (batch.inputs.double(),))
        if recording.problem.loss == "ce":
            one = torch.nn.functional.cross_entropy(outputs, batch.targets)
        else:
            one = torch.nn.functional.mse_loss(outputs, batch.targets.double())
        lost = lost + one * len(share) / total
    found = torch.autograd.grad(lost, list(named.values()))
    return recording.graph.flatten(dict(zip(named, found, strict=True)), torch.float64)


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())
