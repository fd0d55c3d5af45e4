"""How the training samples are dealt to clients: at random, skewed by class, or by where they came from.

Formal guarantee of every function here: each index from 0 to the number of samples - 1 is in exactly one
share, no share is empty, and the same randomness gives the same shares. Indices in a share ascend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bilateral.data.dataset import Split
from bilateral.errors import DataError
from bilateral.randomness import Randomness

PARTITION_KINDS: Final = ("iid", "dirichlet", "site")
_MAX_DRAWS: Final = 100
_MAX_DISTINCT_TARGETS: Final = 20


@dataclass(frozen=True, eq=False)
class ClientShare:
    """One client's samples: ascending indices into the train split."""

    name: str
    indices: Tensor


def partition(
    split: Split,
    kind: str,
    num_clients: int | None,
    randomness: Randomness,
    *,
    proportions: Sequence[float] | None = None,
    alpha: float = 0.5,
    min_samples: int = 1,
) -> list[ClientShare]:
    """Deal `split` to clients by `kind`: "iid" (with `proportions`), "dirichlet" (with `alpha`) or "site".

    With "site", `num_clients` may be None or 0 and is then the number of sites.
    """
    if kind == "site":
        return _site_shares(split, num_clients)
    if kind not in PARTITION_KINDS:
        raise DataError(
            f'Expected a partition kind among {", ".join(PARTITION_KINDS)}, got "{kind}".',
            remedy='Use "iid" unless the experiment is about uneven data.',
        )
    clients = num_clients or 0
    if kind == "iid":
        shares = partition_iid(len(split), clients, randomness, proportions)
    else:
        shares = partition_dirichlet(_class_labels(split), clients, alpha, randomness, min_samples)
    return [ClientShare(f"client-{number}", indices) for number, indices in enumerate(shares, start=1)]


def partition_iid(
    num_samples: int,
    num_clients: int,
    randomness: Randomness,
    proportions: Sequence[float] | None = None,
) -> list[Tensor]:
    """Deal samples at random, in equal numbers or in the given proportions (which need not sum to 1)."""
    _check_counts(num_samples, num_clients)
    weights = [1.0] * num_clients if proportions is None else [float(weight) for weight in proportions]
    if len(weights) != num_clients or not all(0 < weight < math.inf for weight in weights):
        raise DataError(
            f"Expected {num_clients} positive proportions (one per client), got {weights}.",
            remedy="Give one positive number per client, or leave proportions out for equal shares.",
        )
    ends = np.cumsum(weights) / math.fsum(weights) * num_samples
    cuts = np.rint(ends[:-1]).astype(np.int64)
    sizes = np.diff(np.concatenate([[0], cuts, [num_samples]]))
    if sizes.min() < 1:
        raise DataError(
            f"Expected every client to get a sample, but proportions {weights} give client "
            f"{int(sizes.argmin()) + 1} none of {num_samples} samples.",
            remedy="Raise its proportion, or use fewer clients.",
        )
    order = randomness.permutation(num_samples)
    return [share.sort().values for share in torch.tensor_split(order, torch.from_numpy(cuts))]


def partition_dirichlet(
    labels: Tensor,
    num_clients: int,
    alpha: float,
    randomness: Randomness,
    min_samples: int = 1,
) -> list[Tensor]:
    """Deal every class by its own Dirichlet(alpha) proportions: the smaller `alpha`, the more skewed.

    Redrawn until every client has `min_samples`, at most 100 times.
    """
    _check_counts(len(labels), num_clients)
    if not 0 < alpha < math.inf:
        raise DataError(
            f"Expected alpha of the Dirichlet partition above 0, got {alpha}.",
            remedy="0.1 is very uneven, 1 is uneven, 100 is close to iid.",
        )
    if min_samples < 1 or min_samples * num_clients > len(labels):
        raise DataError(
            f"Expected min_samples between 1 and {len(labels) // num_clients} "
            f"({len(labels)} samples for {num_clients} clients), got {min_samples}.",
            remedy="Lower min_samples, or use fewer clients.",
        )
    generator = np.random.default_rng(int.from_bytes(randomness.random_bytes(16), "little"))
    classes = [np.flatnonzero(labels.numpy() == label) for label in np.unique(labels.numpy())]
    for _ in range(_MAX_DRAWS):
        owner = _dirichlet_owners(classes, len(labels), num_clients, alpha, generator)
        if np.bincount(owner, minlength=num_clients).min() >= min_samples:
            return [torch.from_numpy(np.flatnonzero(owner == client)) for client in range(num_clients)]
    raise DataError(
        f"Expected at least {min_samples} samples for each of {num_clients} clients, but none of "
        f"{_MAX_DRAWS} draws with alpha {alpha} gave that.",
        remedy="Raise alpha, lower min_samples, or use fewer clients.",
    )


def partition_by_site(sites: Sequence[str]) -> list[ClientShare]:
    """One client per site, named after it, in alphabetical order."""
    names, owner = np.unique(np.asarray(sites, dtype=np.str_), return_inverse=True)
    return [
        ClientShare(str(name), torch.from_numpy(np.flatnonzero(owner == index))) for index, name in enumerate(names)
    ]


def _dirichlet_owners(
    classes: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]],
    num_samples: int,
    num_clients: int,
    alpha: float,
    generator: np.random.Generator,
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The client that owns each sample, in one draw."""
    owner = np.empty(num_samples, dtype=np.int64)
    for members in classes:
        fractions = generator.dirichlet(np.full(num_clients, alpha))
        ends = np.rint(np.cumsum(fractions) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owner[generator.permutation(members)] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return owner


def _site_shares(split: Split, num_clients: int | None) -> list[ClientShare]:
    if split.sites is None:
        raise DataError(
            "Expected data that name the site of every sample for a partition by site, got none.",
            remedy='Use data with sites (heart-disease, ham10000), or the partition "iid" or "dirichlet".',
        )
    shares = partition_by_site(split.sites)
    if num_clients and num_clients != len(shares):
        raise DataError(
            f"Expected {len(shares)} clients (the number of sites: {_abridged([s.name for s in shares])}), "
            f"got {num_clients}.",
            remedy=f"Set the number of clients to {len(shares)}, or leave it out.",
        )
    return shares


def _class_labels(split: Split) -> Tensor:
    """Labels to skew by; a regression on few distinct values (yes/no, a severity grade) has them too."""
    if split.targets.ndim == 1:
        return split.targets
    values, labels = np.unique(split.targets.numpy(), return_inverse=True, axis=0)
    if len(values) > _MAX_DISTINCT_TARGETS:
        raise DataError(
            f"Expected class labels (or at most {_MAX_DISTINCT_TARGETS} distinct targets) for a Dirichlet "
            f"partition, got {len(values)} distinct regression targets.",
            remedy='Use the partition "iid" or "site" for regression.',
        )
    return torch.from_numpy(labels.reshape(-1))


def _check_counts(num_samples: int, num_clients: int) -> None:
    if not 1 <= num_clients <= num_samples:
        raise DataError(
            f"Expected a number of clients between 1 and {num_samples} (the number of samples), got {num_clients}.",
            remedy="Use fewer clients, or more samples.",
        )


def _abridged(names: Sequence[str], shown: int = 6) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
