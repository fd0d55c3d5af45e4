"""The seam between the learning and the cryptography: whoever asks learns the sum of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from bilateral.errors import PlanError, ProtocolError
from bilateral.learning.hetero.fitting import predict


class Answers(Protocol):
    """Asks other clients' networks.

    Whoever asks learns the sum of the answers. Nobody learns anything else: that is for an implementation to keep.
    """

    def offer(self, name: str, model: nn.Module, samples: Tensor) -> None:
        """From now on `name` answers with this network. `samples` are its own, to see the range of its numbers."""
        ...

    def summed_logits(self, querier: str, queries: Tensor, answerers: Sequence[str]) -> Tensor:
        """Float32 `[queries, classes]`: the sum over `answerers` of the outputs of what they offered."""
        ...


class PlainAnswers:
    """Answers in the clear, float32: the oracle for every other implementation, and quick. It hides nothing."""

    def __init__(self) -> None:
        self._offered: dict[str, nn.Module] = {}

    def offer(self, name: str, model: nn.Module, samples: Tensor) -> None:  # noqa: ARG002
        self._offered[name] = model

    def summed_logits(self, querier: str, queries: Tensor, answerers: Sequence[str]) -> Tensor:
        self._check(querier, answerers)
        total = predict(self._offered[answerers[0]], queries).float()
        for name in answerers[1:]:
            total = total + predict(self._offered[name], queries).float()
        return total

    def _check(self, querier: str, answerers: Sequence[str]) -> None:
        if not answerers:
            raise PlanError(f"Nobody answers {querier}.", remedy="Use two clients or more.")
        if querier in answerers or len(set(answerers)) != len(answerers):
            raise ProtocolError(
                f"Expected different others to answer {querier}, got {', '.join(answerers)}.",
                remedy="Ask the others, each once.",
            )
        missing = [name for name in answerers if name not in self._offered]
        if missing:
            raise ProtocolError(f"{', '.join(missing)} offered no network to answer with.")


def soft_labels(summed: Tensor, num_answers: int, *, temperature: float, are_probabilities: bool) -> Tensor:
    """Probabilities from the sum of `num_answers` answers.

    Sums of probabilities are averaged. Sums of logits are averaged too, divided by `temperature`, and pass a softmax:
    P4 sums, and a mean is that sum at another temperature, one that does not depend on how many answered.
    """
    if not torch.isfinite(summed).all():
        raise ProtocolError("Expected finite sums of answers, got NaN or Inf.", remedy="Look at the answerers' models.")
    mean = summed / num_answers
    return mean if are_probabilities else (mean / temperature).softmax(1)
