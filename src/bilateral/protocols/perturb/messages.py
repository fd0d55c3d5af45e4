"""The messages of model perturbation, in the order in which they are sent.

1. `PerturbedModel`   server -> client   the round's model, and what clients are told about its noise
2. `SoftmaxQuery`     client -> server   published cross entropy only: blinded exponentials of the noisy outputs
3. `SoftmaxReply`     server -> client   published cross entropy only: what turns them into blinded softmax values
4. `Upload`           client -> server   the noisy gradient and its noise terms, batch statistics, weight
                                         (bilateral.protocols.messages: every protocol ends with one)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.messages import Message, Question, RoundModel


@dataclass(frozen=True)
class PerturbedModel(RoundModel):
    """The perturbed parameters of one round, the output directions and the partition of the outputs.

    `group_secrets`: one a group where clients compute the softmax themselves (`tells_noise`), otherwise empty.
    """

    output_directions: Tensor
    partition: Tensor
    group_secrets: Tensor


@dataclass(frozen=True)
class SoftmaxQuery(Question):
    """Per sample: the activation sum (activation noise only), and `exp(y_j - y_i)` plus the client's blinder of i."""

    round_index: int
    activation_sum: Tensor
    blinded_exponentials: Tensor


@dataclass(frozen=True)
class SoftmaxReply(Message):
    """Per sample and class: blinded denominator, the client blinder's coefficient, and the correction `q`."""

    round_index: int
    blinded_denominators: Tensor
    blinder_coefficients: Tensor
    corrections: Tensor
