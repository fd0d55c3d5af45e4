"""One round as the server has it, with candidates whose place is known: the setting of membership in a batch.

Candidates are the samples of all clients' batches, and samples that nobody trained on (of the server's test data, which
is of the same source). The rest of the test data is what the server has: one part for the attack, one for the negative
control.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.audit.experiment import Context
from bilateral.audit.threat import server_view
from bilateral.audit.topics.membership.attacks.lira import joined
from bilateral.audit.topics.membership.attacks.upload_membership import Bench, sample_gradients
from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError
from bilateral.learning.client import prepare_targets
from bilateral.randomness import Randomness

NUM_ROUNDS = 3
MAX_PER_CLIENT = 64
MAX_OWN = 240
FEWEST_TEST_SAMPLES = 20
Pair = tuple[Tensor, Tensor]
"""Scores of members and of strangers."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What the server sees of a round (`view`), and the truth (`owner`, `sizes`)."""

    number: int
    """Of the run, for what is drawn."""
    view: View
    round_index: int
    clients: tuple[str, ...]
    candidates: Split
    owner: Tensor
    """The number of the client whose batch a candidate is in, -1 for none."""
    sizes: Tensor
    """How many samples each client has."""
    batch_sizes: Tensor
    network: nn.Module
    """The true model of the round."""
    bench: Bench
    unrelated_samples: Split
    unrelated_gradients: Tensor

    @property
    def used(self) -> Tensor:
        return self.owner >= 0

    @property
    def batch_size(self) -> int:
        """Of one client."""
        return max(1, round(float(self.batch_sizes.double().mean())))

    def restricted(self, gradient: Tensor) -> Tensor:
        """A flat gradient where the bench looks."""
        return gradient[self.bench.coordinates].to(self.bench.gradients.dtype)

    def source_pair(self, scores: Tensor) -> Pair:
        """clients x candidates -> scores of pairs (client, sample) that belong together, and of those that do not."""
        together = self.owner[None, self.used] == torch.arange(len(self.clients))[:, None]
        of_used = scores[:, self.used]
        return of_used[together], of_used[~together]

    def sum_pair(self, scores: Tensor) -> Pair:
        """one score a candidate -> of those in a batch, and of those in none."""
        return scores[self.used], scores[~self.used]

    def unrelated(self, count: int, batch_size: int, randomness: Randomness) -> Tensor:
        """Mean gradients of `count` batches that have nothing to do with the clients'."""
        rows = (randomness.uniform(count, batch_size) * len(self.unrelated_gradients)).long()
        return torch.stack([self.unrelated_gradients[row].mean(0) for row in rows])


def make_scene(context: Context, plan: RunPlan, number: int) -> Scene:
    """The last round of a short run of `plan`."""
    recording = context.record(plan)
    view, last = server_view(recording), plan.training.rounds - 1
    clients = tuple(name for name, round_index in recording.batches if round_index == last)
    batches = [recording.batches[name, last] for name in clients]
    chosen = [batch.subset(torch.arange(min(len(batch), MAX_PER_CLIENT))) for batch in batches]
    own, unrelated, strangers = _test_parts(recording.test, recording.problem.num_outputs, recording.problem.loss)
    strangers = strangers.subset(torch.arange(min(len(strangers), sum(map(len, chosen)))))
    candidates = joined(*chosen, strangers)
    counts = torch.tensor([*(len(batch) for batch in chosen), len(strangers)])
    owner = torch.repeat_interleave(torch.tensor([*range(len(clients)), -1]), counts)
    dtype = candidates.inputs.dtype
    network = view.facts.network(view.server_round(last).parameters.to(dtype))
    graph, draws = view.facts.graph, context.randomness("upload membership", number)
    bench = Bench.of(graph, network, candidates, own, draws)
    return Scene(
        number,
        view,
        last,
        clients,
        candidates,
        owner,
        torch.tensor([len(recording.shares[name]) for name in clients]),
        torch.tensor([len(batch) for batch in batches]),
        network,
        bench,
        unrelated,
        sample_gradients(graph, network, unrelated, bench.coordinates),
    )


def _test_parts(test: Split, num_outputs: int, loss: str) -> tuple[Split, Split, Split]:
    """Three fifths for the attack, a seventh for the negative control, the rest are strangers."""
    if len(test) < FEWEST_TEST_SAMPLES:
        raise DataError(
            f"Expected {FEWEST_TEST_SAMPLES} test samples or more, from which the server simulates uploads, got "
            f"{len(test)}.",
            remedy="Audit with a larger test set.",
        )
    prepared = prepare_targets(test, num_outputs, loss)
    first, second = len(test) * 3 // 5, len(test) * 3 // 4
    ranges = (0, min(first, MAX_OWN)), (first, second), (second, len(test))
    own, unrelated, strangers = (prepared.subset(torch.arange(*ends)) for ends in ranges)
    return own, unrelated, strangers
