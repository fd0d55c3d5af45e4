"""Random orders that two parties derive from a common stream."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bilateral.protocols.share.gates.arrays import fused
from bilateral.protocols.share.ring.streams import Stream


def random_orders(stream: Stream, batch: int, size: int) -> Tensor:
    """A random permutation of range(size) for each sample (Fisher-Yates; 32 bits a draw, bias below size / 2^32)."""
    draws = stream.half_words(batch, size)
    orders = np.empty((batch, size), dtype=np.int64)
    fused().shuffle(draws.cpu().numpy().view(np.uint32), orders)
    return torch.from_numpy(orders).to(draws.device)
