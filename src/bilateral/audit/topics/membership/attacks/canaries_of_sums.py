"""Was a canary trained on, asked of the sums of a run: no upload, no model but the server's own.

The server knows each canary and the model of each round, so that it knows what a canary's gradient would be. Of every
round's sum it takes the weight of each canary in it (`upload_membership.decomposition`: least squares by the gradients
of all canaries, and of samples of its own for everything else). A canary is not in every batch; it is in the run if it
is in one, so the score is the largest weight of all rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bilateral.audit.topics.membership.attacks.upload_membership import Bench, read_sum
from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.randomness import Randomness


def canary_scores(
    view: View, rounds: Sequence[int], canaries: Split, own: Split, randomness: Randomness
) -> dict[bool, Tensor]:
    """A score a canary; naive (False: of the first term of each sum, taken for a gradient) and adaptive (True)."""
    found: dict[bool, list[Tensor]] = {False: [], True: []}
    for index in rounds:
        network = view.facts.network(view.server_round(index).parameters.to(canaries.inputs.dtype))
        bench = Bench.of(view.facts.graph, network, canaries, own, randomness)
        for adaptive, scores in found.items():
            total = read_sum(view, index, adaptive=adaptive)[bench.coordinates].to(bench.gradients.dtype)
            scores.append(bench.score(total[None], "decomposition", 1, randomness)[0])
    return {adaptive: torch.stack(scores).amax(0) for adaptive, scores in found.items()}
