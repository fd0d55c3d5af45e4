"""The edge of a site: what goes out when something goes wrong there, and the two forms that an answer has.

Formal guarantee (tests/runs/rounds/test_desk.py, tests/runs/hetero/test_desk.py): nothing that a server sends can make
a site raise, and nothing about its data goes out but what the protocol says: errors about its own data, settings or
plan stay in its log, and the server hears only that there was one. When the server itself is caught
(`AuthenticationError`: other keys, lists or models than the others were shown), the site leaves the term for good.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from bilateral.errors import AuthenticationError, BilateralError, NumericalRangeError, ProtocolError

log = logging.getLogger("bilateral.site")
REPLY: Final = "reply"
REFUSED: Final = "refused"
"""The keys of a site's answer: what its kind of run replies with, or a sentence."""
PINGS_BEFORE_GIVING_UP = 2
Ping = Callable[[str], bool | None]
"""`Sites.ping`."""


class SiteSilentError(Exception):
    """A site gave no answer: its process is gone, it is cut off, or it took too long."""


class SiteEdge:
    """One site in one term: works on one thing at a time, and turns whatever happens into an answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._at_work = threading.Lock()
        self._left = ""

    def is_idle(self) -> bool:
        """Nothing is being worked on: what a ping wants to know."""
        return not self._at_work.locked()

    def check_in_term(self) -> None:
        """Refuse, if the site has left the term."""
        if self._left:
            raise ProtocolError(self._left)

    def answer(self, work: Callable[[], Any]) -> dict[str, Any]:
        """What `work` returns, as a reply, or a refusal."""
        with self._at_work:
            return self._answer(work)

    def _answer(self, work: Callable[[], Any]) -> dict[str, Any]:
        try:
            return {REPLY: work()}
        except AuthenticationError as error:
            self._left = f"{self.name} has left this term, since the server is not what it should be: {error}"
            log.error("%s", self._left)
            return refusal(self._left)
        except NumericalRangeError as error:  # its text has figures of the data
            log.error("%s cannot go on: %s", self.name, error)
            return refusal(f"{type(error).__name__} at {self.name}; its own log says more.")
        except ProtocolError as error:  # about the server's own messages: it may know
            log.warning("%s refused: %s", self.name, error)
            return refusal(str(error))
        except BilateralError as error:
            log.error("%s cannot go on: %s", self.name, error)
            return refusal(f"{type(error).__name__} at {self.name}; its own log says more.")
        except Exception:  # the edge of the site: whatever it is, it stays in the site's log
            log.exception("%s failed", self.name)
            return refusal(f"an internal error at {self.name}; its own log says more.")


def refusal(reason: str) -> dict[str, Any]:
    return {REFUSED: reason}
