"""Whom a server leaves out of later rounds, because it broke the protocol or because somebody says so.

If shares do not open, the server cannot tell whether the dealer sealed garbage or the recipient lies: it is one of the
two. Those in most complaints are left out until every complaint is explained. One client, honest or not, is in as
many complaints as it makes or causes; so who accuses many is left out itself, and those it accused come back.
"""

from __future__ import annotations

from collections import Counter


class Suspects:
    """Complaints and proofs of one run. A restarted server begins anew."""

    def __init__(self) -> None:
        self._proven: set[str] = set()
        self._complaints: set[tuple[str, str]] = set()

    def convict(self, client: str) -> None:
        """`client` was proven to have dealt wrongly."""
        self._proven.add(client)

    def accuse(self, accuser: str, dealer: str) -> None:
        """`accuser` says that the shares of `dealer` do not open."""
        self._complaints.add((accuser, dealer))

    def names(self) -> frozenset[str]:
        """Enough clients to explain every complaint; of two that stand alone against each other, the dealer."""
        found = set(self._proven)
        while unexplained := {pair for pair in self._complaints if found.isdisjoint(pair)}:
            counts = Counter(name for pair in unexplained for name in pair)
            dealers = {dealer for _, dealer in unexplained}
            found.add(max(sorted(counts), key=lambda name: (counts[name], name in dealers)))
        return frozenset(found)
