"""A random sketch of every layer's inputs: count sketches, whose product with their transpose is 1 on average."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.models.layout import ModelLayout
from bilateral.randomness import SeededRandomness

SEED_BYTES = 16


@dataclass(frozen=True)
class CountSketch:
    """Each of d inputs goes into one of s buckets, with a sign: the matrix S (d x s) without its zeros."""

    bucket: Tensor
    sign: Tensor
    num_buckets: int

    def there_and_back(self, weights: Tensor) -> Tensor:
        """W S S^T, of weights (outputs x d)."""
        sign = self.sign.to(weights.dtype)
        sketched = weights.new_zeros(len(weights), self.num_buckets)
        sketched.index_add_(1, self.bucket, weights * sign)
        return sketched[:, self.bucket] * sign

    def matrix(self) -> Tensor:
        """S itself."""
        dense = torch.zeros(len(self.bucket), self.num_buckets, dtype=torch.float64)
        dense[torch.arange(len(self.bucket)), self.bucket] = self.sign
        return dense


def draw_sketch(size: int, ratio: float, randomness: SeededRandomness) -> CountSketch:
    """A sketch of `size` inputs into `ratio` times as many buckets."""
    count = max(1, math.ceil(ratio * size))
    bucket = (randomness.child("bucket").uniform(size) * count).long().clamp_max(count - 1)
    return CountSketch(bucket, randomness.child("sign").signs(size), count)


def sketched(vector: Tensor, layout: ModelLayout, ratio: float, seed: bytes) -> Tensor:
    """A flat vector of parameters (or of their gradient) with every layer's weights as their sketch has them.

    Weights with two dimensions or more are sketched; biases and normalisation are left as they are.
    """
    randomness = SeededRandomness(int.from_bytes(seed, "little"), "sketch")
    values = {name: value.clone() for name, value in layout.unflatten(vector).items()}
    for name, value in values.items():
        if value.dim() >= 2:
            rows = value.reshape(len(value), -1)
            sketch = draw_sketch(rows.shape[1], ratio, randomness.child(name))
            values[name] = sketch.there_and_back(rows).reshape(value.shape)
    return layout.flatten(values, vector.dtype)
