"""The published exchange of cross entropy (spec 1.3, P0 section III-B): blinded softmax values, `softmax = "blinded"`.

1. client -> server: `alpha` and `mu_ij = exp(y_hat_j - y_hat_i) + lambda_i`, `lambda_i` the client's own blinders.
2. server -> client: `y'_i = exp(d_i) + sum_j mu_ij exp(r*_ij)`, `sum_j exp(r*_ij)` and `q_i = (1 - exp(d_i)) / xi`,
   where `r*_ij = d_i - (r_j - r_i) alpha` and `d_i` are the server's blinders, fresh for every sample and class.
3. client: `p*_i = 1 / (y'_i - lambda_i sum_j exp(r*_ij)) = softmax_i / exp(d_i)` and `p~_i = p*_i q_i`.

Sums run over j != i. All of it in float64; what stands in an exponent is checked, never clamped. The client's
blinders are of the size of the smallest exponential that they hide: then what step 3 subtracts is never larger than
ten times what stays, and no digits are lost however large the noise is (docs/decisions/0004).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError
from bilateral.protocols.perturb.messages import SoftmaxQuery, SoftmaxReply
from bilateral.randomness import Randomness

LARGEST_OUTPUT_DIFFERENCE = 300.0
LARGEST_NOISE_EXPONENT = 300.0
"""exp of both together is far inside float64."""
LARGEST_BLINDER = 1.0


@dataclass(frozen=True, repr=False)
class ClientBlinders:
    """`lambda`: a number per sample and class that only the client knows."""

    values: Tensor


@dataclass(frozen=True)
class BlindedSoftmax:
    """What the client gets out of the exchange: `p*` (blinded) and `p~` (corrected)."""

    blinded: Tensor
    corrected: Tensor


def query(
    round_index: int, noisy_outputs: Tensor, activation_sum: Tensor, randomness: Randomness
) -> tuple[SoftmaxQuery, ClientBlinders]:
    """Step 1, client."""
    outputs = noisy_outputs.double()
    differences = outputs[:, None, :] - outputs[:, :, None]  # [n, i, j] = y_j - y_i
    largest = float(differences.max())
    if not largest <= LARGEST_OUTPUT_DIFFERENCE:
        raise NumericalRangeError(
            f"Model outputs differ by {largest:.3g}; cross entropy is exact up to {LARGEST_OUTPUT_DIFFERENCE:g}.",
            remedy="The model diverges: lower the learning rate or normalise the inputs.",
        )
    exponentials = _without_diagonal(torch.exp(differences))
    blinders = randomness.log_uniform(*outputs.shape, low=0.1, high=10.0) * exponentials.min(2).values
    return (
        SoftmaxQuery(round_index, activation_sum.double(), exponentials + blinders[:, :, None]),
        ClientBlinders(blinders),
    )


def reply(
    message: SoftmaxQuery,
    output_noise: Tensor,
    blinders_of_output: Tensor,
    noise_follows_activation: bool,
    sample_blinders: Tensor,
) -> SoftmaxReply:
    """Step 2, server. `output_noise` is r, `blinders_of_output` xi of each output's group, `sample_blinders` d."""
    num_samples = len(message.blinded_exponentials)
    carrier = message.activation_sum if noise_follows_activation else torch.ones(num_samples, dtype=torch.float64)
    noise = carrier[:, None] * output_noise  # what the client's outputs carry
    largest = float(noise.max(1).values.sub(noise.min(1).values).max())
    if not largest <= LARGEST_NOISE_EXPONENT:
        raise NumericalRangeError(
            f"The additive noise spans {largest:.3g} in the exponent; it is exact up to {LARGEST_NOISE_EXPONENT:g}.",
            remedy="Lower perturbation.noise_ratio, use noise = 'offset', or calibrate on inputs like the clients'.",
        )
    exponents = sample_blinders[:, :, None] - (noise[:, None, :] - noise[:, :, None])
    factors = _without_diagonal(torch.exp(exponents))
    own = torch.exp(sample_blinders)
    return SoftmaxReply(
        message.round_index,
        blinded_denominators=own + (message.blinded_exponentials * factors).sum(2),
        blinder_coefficients=factors.sum(2),
        corrections=(1.0 - own) / blinders_of_output,
    )


def draw_sample_blinders(message: SoftmaxQuery, randomness: Randomness) -> Tensor:
    """d: a number per sample and class that only the server knows, uniform on (-LARGEST_BLINDER, LARGEST_BLINDER)."""
    num_samples, num_outputs, _ = message.blinded_exponentials.shape
    return randomness.uniform(num_samples, num_outputs, low=-LARGEST_BLINDER, high=LARGEST_BLINDER)


def unblind(message: SoftmaxReply, client_blinders: ClientBlinders) -> BlindedSoftmax:
    """Step 3, client."""
    denominators = message.blinded_denominators - client_blinders.values * message.blinder_coefficients
    if not bool((denominators > 0).all()):
        raise NumericalRangeError(
            "The server's softmax reply gives a negative probability.",
            remedy="The reply is corrupt; repeat the round.",
        )
    blinded = 1.0 / denominators
    return BlindedSoftmax(blinded, blinded * message.corrections)


def _without_diagonal(square: Tensor) -> Tensor:
    """(n, c, c) -> (n, c, c - 1): drop j = i."""
    n, c, _ = square.shape
    return square.reshape(n, -1)[:, 1:].reshape(n, c - 1, c + 1)[:, :, :-1].reshape(n, c, c - 1)
