"""What the sites of a service have in common: packets of one message, each taken once, of a server with the same plan.

Formal guarantees (tests/serving/hosted/test_sites.py):
- a packet whose number is not larger than all before is refused and changes nothing, so nothing can be replayed;
- nothing that a server sends makes a site raise, and a site answers nothing before it was called up for its own plan.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bilateral.engine.remote.edge import SiteEdge
from bilateral.errors import ProtocolError
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.serving.hosted.messages import CallUp, SiteHere
from bilateral.serving.hosted.plan import ServingPlan


class ServiceSite(SiteEdge):
    """One site in one term. Called from the transport's threads, one packet at a time."""

    types: tuple[type[Message], ...]
    """What the server may say to it."""

    def __init__(self, name: str, plan: ServingPlan, version: str) -> None:
        super().__init__(name)
        self.plan, self._version = plan, version
        self._latest, self._is_called_up = 0, False

    def deliver(self, lane: object, number: object, packet: object) -> dict[str, Any]:  # noqa: ARG002 (there is one)
        """The reply to a packet of one message, or a refusal."""
        return self.answer(lambda: [encode(self._take(number, packet))])

    @abstractmethod
    def handle(self, message: Message) -> Message: ...

    def _take(self, number: object, packet: object) -> Message:
        if not isinstance(packet, list | tuple) or len(packet) != 1 or not isinstance(packet[0], bytes):
            raise ProtocolError("The packet is malformed.")
        if type(number) is not int or number <= self._latest:
            raise ProtocolError(f"{self.name} took packet {self._latest} before, and takes none twice.")
        message = decode(packet[0], self.types, SERVER)
        self._latest = number
        if isinstance(message, CallUp):
            return self._call_up(message)
        if not self._is_called_up:
            raise ProtocolError(f"{self.name} was not called up in this term.")
        return self.handle(message)

    def _call_up(self, message: CallUp) -> SiteHere:
        if message.plan_digest != self.plan.digest():
            raise ProtocolError(f"The server serves by another plan than {self.name}.", remedy="Begin it anew.")
        if message.version != self._version:
            raise ProtocolError(f"{self.name} runs another version of bilateral.", remedy="Install the same.")
        self._is_called_up = True
        return SiteHere(self.plan.digest(), self._version)
