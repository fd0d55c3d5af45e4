"""Who is there. A site that did not answer is out until it answers again, so that a death costs one time-out only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bilateral.engine.events import Event, SiteMissed, SiteReturned, Waiting
from bilateral.engine.remote.edge import Ping
from bilateral.errors import SitesMissingError

PING_EVERY = 1.0
MAX_ROUNDS_OUT = 15


@dataclass
class _Absence:
    """A site that was missed. `until_round`: it sits out so long even if it answers."""

    until_round: int
    answers: bool = False


@dataclass
class Attendance:
    """Keeps count of the sites of a term.

    A site that is missed again and again (too slow for the time-out) sits out 1, 3, 7, ... rounds, so that it does not
    hold up the others every time. `needed` is how many a round takes to start; with fewer, `gather` waits.
    """

    sites: Sequence[str]
    ping: Ping
    tell: Callable[[Event], None]
    needed: int = 1
    patience: float = 600.0
    should_stop: Callable[[], bool] = lambda: False
    ping_every: float = PING_EVERY
    all_invited: bool = False
    """A round needs every site that is invited, however many those are: who cheated is not invited any more."""
    always: Sequence[str] = ()
    """Sites without which no round starts, though they are not invited: they have no data."""
    _absent: dict[str, _Absence] = field(default_factory=dict)
    _misses: dict[str, int] = field(default_factory=dict)
    _looked_for: set[str] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def present(self, round_index: int, names: Sequence[str]) -> list[str]:
        """Those of `names` that can be called in a round."""
        with self._changed:
            return [name for name in names if name in self.sites and self._is_there(name, round_index)]

    def gather(self, round_index: int, invited: Sequence[str]) -> list[str]:
        """The invited sites that are there; waits up to `patience` seconds until they are enough."""
        needed = min(self.needed, len(invited)) if self.all_invited else self.needed
        # Whoever is not in this term, or out of it for good, will not come however long we wait.
        possible = sum(name in self.sites for name in invited) >= needed
        deadline = time.monotonic() + (self.patience if possible else 0.0)
        present, missing = self._welcome(round_index, invited), self._helpers_missing(round_index)
        if missing or len(present) < needed:
            self.tell(Waiting(round_index + 1, tuple(present), needed))
        while missing or len(present) < needed:
            left = deadline - time.monotonic()
            if left <= 0 or self.should_stop():
                if missing:
                    raise SitesMissingError(
                        f"Round {round_index + 1} needs {missing[0]}, who deals, and it is not there.",
                        remedy="Bring it back and resume; every round so far is in the checkpoint.",
                    )
                raise SitesMissingError(
                    f"Round {round_index + 1} needs {needed} sites, {len(present)} are there"
                    f"{': ' + ', '.join(present) if present else ''}.",
                    remedy="Bring the sites back and resume; every round so far is in the checkpoint.",
                )
            with self._changed:
                self._changed.wait(min(left, self.ping_every))
            self._forgive(round_index)
            present, missing = self._welcome(round_index, invited), self._helpers_missing(round_index)
        return present

    def missed(self, site: str, round_index: int, stage: str, reason: str) -> None:
        """The site gave no answer: out of this round, and of the next ones until it answers a ping."""
        self.tell(SiteMissed(site, round_index + 1, stage, reason))
        with self._changed:
            self._misses[site] = self._misses.get(site, 0) + 1
            rounds_out = min(2 ** (self._misses[site] - 1) - 1, MAX_ROUNDS_OUT)
            self._absent[site] = _Absence(round_index + 1 + rounds_out)
            start = site in self.sites and site not in self._looked_for
            self._looked_for.add(site)
        if start:
            threading.Thread(target=self._look_for, args=(site,), daemon=True, name=f"look-for-{site}").start()

    def contributed(self, sites: Sequence[str]) -> None:
        """These were in time: their record is clean again."""
        with self._changed:
            for site in sites:
                self._misses.pop(site, None)

    def close(self) -> None:
        """No more pings."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_there(self, name: str, round_index: int) -> bool:
        absence = self._absent.get(name)
        return absence is None or (absence.answers and round_index >= absence.until_round)

    def _helpers_missing(self, round_index: int) -> list[str]:
        there = self._welcome(round_index, self.always)
        return [name for name in self.always if name not in there]

    def _welcome(self, round_index: int, invited: Sequence[str]) -> list[str]:
        present = self.present(round_index, invited)
        for name in present:
            with self._changed:
                came_back = self._absent.pop(name, None) is not None
            if came_back:
                self.tell(SiteReturned(name, round_index + 1))
        return present

    def _forgive(self, round_index: int) -> None:
        """Too few without those that sit out: better a slow site than none."""
        with self._changed:
            for absence in self._absent.values():
                absence.until_round = min(absence.until_round, round_index)

    def _look_for(self, site: str) -> None:
        while True:
            with self._changed:
                absence = self._absent.get(site)
                if self._closed or absence is None:
                    self._looked_for.discard(site)
                    return
            answers = self.ping(site) is True
            with self._changed:
                absence.answers = answers  # of the absence that was asked about, if there is another by now
                self._changed.notify_all()
                self._changed.wait(self.ping_every)
