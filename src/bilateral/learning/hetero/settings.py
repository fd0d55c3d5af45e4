"""Public settings of a client: how it trains, what it asks, how it learns from the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PoolName = Literal["mixup", "cutmix", "cutout", "flips", "gaussian", "private"]
SelectionName = Literal["random", "margin", "entropy", "k-center", "icd"]
Normalisation = Literal["none", "scale", "softmax"]


@dataclass(frozen=True)
class LocalTrainingSettings:
    """Training on the client's own data: SGD with momentum; the learning rate warms up, then a cosine down to 0."""

    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    augment: bool = False


@dataclass(frozen=True)
class QuerySettings:
    """What is asked.

    A strategy other than `random` chooses `number` out of a pool of `number * pool_factor`. The pool `private` holds
    every private sample once, so it may give fewer queries than `number`.

    `mixup_weight`: the weight of the first sample of every mixup; None draws 0.1, 0.2 ... 0.9 for each (P4).

    `normalisation` is what an answerer does to its own logits before they are summed: `none`; `scale` (its last layer
    times one constant, see `scaling.common_spread_factor`); `softmax` (each answer becomes probabilities, which needs
    plaintext and serves comparisons only).
    """

    pool: PoolName = "mixup"
    number: int = 1000
    selection: SelectionName = "random"
    pool_factor: int = 3
    normalisation: Normalisation = "none"
    mixup_weight: float | None = None


@dataclass(frozen=True)
class RetrainingSettings:
    """Learning from own data and answered queries: Adam, the learning rate a tenth after half of the steps (P4, F).

    `max_steps` bounds the gradient steps however many queries there are, so that runs with few and with many queries
    cost the same. `temperature` divides the mean of the answerers' logits before the softmax that makes soft labels.
    `private_weight` is the weight of an own sample in the loss; an answered query has weight 1. Without `from_answers`
    answers are asked for and thrown away, and as many steps are taken on the own samples: the control that shows what
    training for longer gains by itself.
    """

    epochs: int = 50
    max_steps: int | None = None
    batch_size: int = 64
    learning_rate: float = 2e-3
    temperature: float = 1.0
    private_weight: float = 1.0
    augment: bool = False
    from_answers: bool = True


@dataclass(frozen=True)
class HeteroSettings:
    """All of a client's settings."""

    training: LocalTrainingSettings
    queries: QuerySettings
    retraining: RetrainingSettings
