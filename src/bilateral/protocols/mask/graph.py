"""Which participants share a mask: all pairs, or a random n-out graph (P2 remark 4, Bell et al. 2020)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from bilateral.errors import ProtocolError
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.mask.settings import MaskSettings


def graph_seed(roster_digest: bytes, round_index: int, attempt: int, participants: Sequence[str]) -> bytes:
    """Seed of a round's graph. It depends on what all parties see, so no party chooses the graph."""
    return hashlib.sha256(injective("pair graph", roster_digest, round_index, attempt, participants)).digest()


class PairGraph:
    """Undirected graph on the participants of a round. Both sides compute the same one from public values."""

    def __init__(self, participants: Sequence[str], neighbours: Sequence[Sequence[int]]) -> None:
        self.participants = tuple(participants)
        self._number = {name: number for number, name in enumerate(self.participants)}
        self._neighbours = {
            name: tuple(self.participants[other] for other in sorted(others))
            for name, others in zip(self.participants, neighbours, strict=True)
        }
        self._neighbourhoods = {name: tuple(sorted((*others, name))) for name, others in self._neighbours.items()}

    @classmethod
    def of(cls, participants: Sequence[str], settings: MaskSettings, seed: bytes) -> PairGraph:
        """The graph of `participants` (different names). The same arguments always give the same graph."""
        if len(set(participants)) != len(participants) or len(participants) < 2:
            raise ProtocolError(f"Expected two or more different participants, got {len(participants)} names.")
        return _build(tuple(sorted(participants)), settings.num_chosen(len(participants)), seed)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """In the order of the names; never `name` itself."""
        return self._neighbours[name]

    def neighbourhood(self, name: str) -> tuple[str, ...]:
        """The neighbours and `name` itself, in the order of the names: who holds shares of its secrets."""
        return self._neighbourhoods[name]

    def point(self, name: str) -> int:
        """Where `name` stands in Shamir's sharing: 1, 2, ... in the order of the participants."""
        return 1 + self._number[name]

    def is_connected(self, subset: Collection[str]) -> bool:
        """Whether the graph restricted to `subset` is in one piece. If not, each piece's sum would show by itself."""
        left = set(subset)
        if not left:
            return False
        waiting = [left.pop()]
        while waiting:
            found = left.intersection(self._neighbours[waiting.pop()])
            left -= found
            waiting += found
        return not left


def forget_graphs() -> None:
    """What a benchmark does before it takes the time of a client that would compute the graph itself."""
    _build.cache_clear()


@lru_cache(maxsize=8)  # public values only: clients of one process may share a graph
def _build(participants: tuple[str, ...], num_chosen: int, seed: bytes) -> PairGraph:
    count = len(participants)
    if num_chosen >= count - 1:
        return PairGraph(participants, [[v for v in range(count) if v != u] for u in range(count)])
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for u in range(count):
        for v in _chosen(seed, u, count, num_chosen):
            neighbours[u].add(v)
            neighbours[v].add(u)
    return PairGraph(participants, [sorted(others) for others in neighbours])


def _chosen(seed: bytes, chooser: int, count: int, num_chosen: int) -> list[int]:
    """`num_chosen` of the others, uniformly: those with the smallest of `count - 1` random 64-bit keys."""
    stream = hashlib.shake_256(injective(seed, chooser)).digest(8 * (count - 1))
    order = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")[:num_chosen]
    return [int(place) + int(place >= chooser) for place in order]
