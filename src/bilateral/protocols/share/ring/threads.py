"""Work on the CPU in parts, one a thread.

The number of threads is `torch.get_num_threads()`. The kernels release Python's lock, so ordinary threads do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bilateral.protocols.share.ring.kernels import Words

WORK_OF_A_THREAD: Final = 1 << 20  # products; less is not worth the hand-over


@lru_cache(maxsize=1)
def _pool(_process_id: int) -> ThreadPoolExecutor:
    """The helping threads of this process. A forked child has none of its parent's threads and makes its own."""
    return ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="ring")


def in_parts(total: int, unit: int, work: int, run: Callable[[int, int], None]) -> None:
    """`run(begin, end)` for parts of `range(total)`, on as many threads as `work` is worth. Parts are whole units."""
    if work < 2 * WORK_OF_A_THREAD:
        run(0, total)
        return
    units = -(-total // unit)
    parts = max(1, min(torch.get_num_threads(), work // WORK_OF_A_THREAD, units))
    bounds = [min(total, units * i // parts * unit) for i in range(parts + 1)]
    helpers = [_pool(os.getpid()).submit(run, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    run(bounds[0], bounds[1])
    for helper in helpers:
        helper.result()


def flat(tensor: Tensor) -> Words:
    """Its words in order; the tensor's own memory if that is contiguous."""
    found: Words = tensor.contiguous().view(-1).numpy()
    return found
