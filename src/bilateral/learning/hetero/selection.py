"""Which queries of a pool to ask (P4 appendix C.3). All strategies look at the asking client's own model only."""

from __future__ import annotations

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from bilateral.errors import PlanError
from bilateral.learning.hetero.settings import SelectionName


def select(
    strategy: SelectionName,
    count: int,
    *,
    logits: Tensor,
    features: Tensor,
    known_features: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """`count` different indices into the pool (all of them, if it holds fewer).

    `logits` and `features` are the client's model's outputs and last hidden layer on the pool, `known_features` its
    last hidden layer on the private samples.
    """
    count = min(count, len(logits))
    match strategy:
        case "random":
            return torch.randperm(len(logits), generator=generator)[:count]
        case "margin":
            return _lowest(margins(logits), count)
        case "entropy":
            return _lowest(-entropies(logits), count)
        case "k-center":
            return k_center(features, known_features, count)
        case "icd":
            clusters = clusters_of(features, logits.shape[1], generator)
            return cluster_balanced(margins(logits), clusters, count)
    raise PlanError(f"There is no selection {strategy!r}.")


def margins(logits: Tensor) -> Tensor:
    """The distance between the two highest probabilities of every row; small means undecided."""
    highest = logits.softmax(1).topk(min(2, logits.shape[1]), dim=1).values
    return highest[:, 0] - highest[:, 1] if highest.shape[1] > 1 else highest[:, 0]


def entropies(logits: Tensor) -> Tensor:
    """Shannon's entropy of every row's probabilities, in nats."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def k_center(features: Tensor, known: Tensor, count: int) -> Tensor:
    """Greedy k-center (Sener & Savarese 2018): again and again the row that is farthest from all chosen and known ones.

    Distances to known rows are taken in blocks, so memory stays at one row of distances a row of the pool.
    """
    nearest = torch.full((len(features),), torch.inf, dtype=features.dtype)
    for block in torch.split(known, 256):
        exact = torch.cdist(features, block, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = torch.minimum(nearest, exact.min(1).values)
    chosen: list[int] = []
    for _ in range(count):
        index = int(nearest.argmax())
        chosen.append(index)
        nearest = torch.minimum(nearest, (features - features[index]).square().sum(1).sqrt())
        nearest[index] = -1.0  # and so it stays: equal rows are at distance 0 too, and none is chosen twice
    return torch.tensor(chosen, dtype=torch.int64)


def cluster_balanced(scores: Tensor, clusters: Tensor, count: int) -> Tensor:
    """The lowest scores of every cluster, each cluster with its share of the pool (largest remainders rounded up).

    This is P4's ICD (informative and diverse): low margins, "maintaining the same distribution over clusters".
    """
    sizes = torch.bincount(clusters).double()
    exact = sizes * count / len(clusters)
    quota = exact.floor().long()
    missing = count - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:missing]] += 1
    order = scores.argsort(stable=True)
    parts = [order[clusters[order] == cluster][: int(quota[cluster])] for cluster in range(len(quota))]
    return torch.cat(parts)


def clusters_of(features: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """The k-means cluster of every row."""
    num_clusters = min(num_clusters, len(features))
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    found = KMeans(num_clusters, n_init=1, random_state=seed).fit_predict(features.double().numpy())
    return torch.from_numpy(found).long()


def _lowest(scores: Tensor, count: int) -> Tensor:
    return scores.argsort(stable=True)[:count]
