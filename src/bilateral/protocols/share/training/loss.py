"""What the loss sends back into the network, on shares: targets are the second party's, outputs nobody's.

MSE is local: delta = y - t. Cross entropy needs the softmax, of batch x classes numbers alone:

1. the largest output m, by comparisons; x = max(y - m, -16), for e^-16 is below the resolution that is asked for
2. e^(x / 16) by a polynomial of degree 6 around -1/2, off by less than 2^-19; to the 16th power by four squarings
3. the inverse of their sum s, 1 <= s <= C: with y0 = 2 / (C + 1) and e = 1 - s y0 (below 1 in size), 1/s is
   y0 (1 + e)(1 + e^2)(1 + e^4) ..., as many factors as C needs
4. p = e^x / s; delta = p - t

Numbers have 28 fraction bits there. Guarantee (`test_probabilities_are_within_2_to_the_minus_12`): every probability is
within 2^-12 of the softmax of the outputs, for outputs that are watched and up to `MOST_CLASSES` of them: what step 1
leaves to those far behind, e^-16 each, is to add up to less.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.training.roles import Gate, Role
from bilateral.protocols.share.training.tape import VALUE_BITS
from bilateral.protocols.share.training.terms import ONE

SOFTMAX_BITS: Final = 28
LOWEST: Final = 16
"""Outputs that are farther below the largest have its probability times e^-16 at most."""
_SQUARINGS: Final = 4  # 2^4 = LOWEST
_DEGREE: Final = 6
_INVERSE_ERROR: Final = 2.0**-20


def loss_delta(role: Role, outputs: Tensor, targets: Tensor | None) -> Gate:
    """The gradient of `factor` times each sample's loss with respect to its outputs, with 20 fraction bits.

    `targets`: numbers with 20 fraction bits for MSE, with 28 and one-hot for cross entropy; None but at the second.
    """
    terms = role.terms
    bits = terms.circuit.output.fraction_bits
    if bits > FRACTION_BITS:
        outputs = yield from role.truncate(outputs, bits - FRACTION_BITS)
    if terms.loss == "mse":
        delta = outputs - role.secret_of_second(targets, outputs.shape)
        return delta if terms.factor == ONE else (yield from role.truncate(delta * terms.factor, FRACTION_BITS))
    probabilities = yield from softmax(role, outputs)
    delta = probabilities - role.secret_of_second(targets, outputs.shape)
    return (yield from role.truncate(delta * terms.factor, SOFTMAX_BITS))


def softmax(role: Role, outputs: Tensor) -> Gate:
    """Probabilities with 28 fraction bits, of outputs with 20."""
    largest = yield from _largest(role, outputs)
    shifted = role.constant(outputs - largest, LOWEST << FRACTION_BITS)
    bit = yield from role.compare(shifted, VALUE_BITS + FRACTION_BITS)
    powers = yield from _exponential(role, role.constant(bit.positive_part(), -(LOWEST << FRACTION_BITS)))
    inverse = yield from _inverse(role, powers.sum(dim=1, keepdim=True), powers.shape[1])
    return (yield from _product(role, powers, inverse.expand(powers.shape)))


def _product(role: Role, x: Tensor, y: Tensor) -> Gate:
    return (yield from role.truncate((yield from role.multiply(x, y)), SOFTMAX_BITS))


def _largest(role: Role, outputs: Tensor) -> Gate:
    candidates = outputs
    while candidates.shape[1] > 1:
        half = candidates.shape[1] // 2
        first, second, odd = candidates[:, :half], candidates[:, half : 2 * half], candidates[:, 2 * half :]
        bit = yield from role.compare(first - second, VALUE_BITS + FRACTION_BITS)
        candidates = torch.cat([second + bit.positive_part(), odd], dim=1)
    return candidates


def _exponential(role: Role, x: Tensor) -> Gate:
    """e^x with 28 fraction bits, for x in [-16, 0] with 20."""
    one = 1 << SOFTMAX_BITS
    # x / 16 is x with four fraction bits more, so that a shift by four gives 28.
    w = role.constant(x << (SOFTMAX_BITS - FRACTION_BITS - _SQUARINGS), one >> 1)
    square = yield from _product(role, w, w)
    third_fourth = yield from _product(role, torch.cat([w, square]), torch.cat([square, square]))
    third, fourth = third_fourth.chunk(2)
    fifth_sixth = yield from _product(role, torch.cat([w, square]), torch.cat([fourth, fourth]))
    fifth, sixth = fifth_sixth.chunk(2)
    total = torch.zeros_like(w)
    for degree, power in enumerate((w, square, third, fourth, fifth, sixth), start=1):
        total = total + power * _coefficient(degree)
    found = yield from role.truncate(role.constant(total, _coefficient(0) << SOFTMAX_BITS), SOFTMAX_BITS)
    for _ in range(_SQUARINGS):
        found = yield from _product(role, found, found)
    return found


def _coefficient(degree: int) -> int:
    """Of Taylor's polynomial of e^y around -1/2."""
    found: int = round(math.exp(-0.5) / math.factorial(degree) * 2**SOFTMAX_BITS)
    return found


def _inverse(role: Role, total: Tensor, num_classes: int) -> Gate:
    """1 / total, for 1 <= total <= num_classes."""
    one, start = 1 << SOFTMAX_BITS, round(2 / (num_classes + 1) * 2**SOFTMAX_BITS)
    error = role.constant(-(yield from role.truncate(total * start, SOFTMAX_BITS)), one)
    found = role.constant(torch.zeros_like(total), start)
    for _ in range(num_factors(num_classes)):
        both = yield from _product(role, torch.cat([found, error]), torch.cat([role.constant(error, one), error]))
        found, error = both.chunk(2)
    return found


def num_factors(num_classes: int) -> int:
    """So many of (1 + e)(1 + e^2)(1 + e^4) ... leave an error of 2^-20, for the largest e there can be."""
    largest = (num_classes - 1) / (num_classes + 1)
    if largest == 0:
        return 1
    return max(1, math.ceil(math.log2(math.log(_INVERSE_ERROR) / math.log(largest))))
