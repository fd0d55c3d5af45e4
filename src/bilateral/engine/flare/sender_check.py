"""Who a FLARE message comes from, and what they may ask: checks before every message that a cell of a party takes.

A cell is FLARE's end of the wires in one process; a party has one in its parent process and one in each job's. FLARE
binds a message's origin to the token that its sender got at registration, as long as that token is registered. A site
that registers anew keeps its old token, which is still signed, and bound to nothing. Nor does a site ask who commands
it. Without these checks (tests/engine/flare/test_dishonest_site.py, live, `guard_cells` taken out) another site took a
hostile site's messages when they came under its own name with either token, and under any name with the old token, the
server's and the victim's own among them; FLARE refuses borrowed names with the registered token. What such a command
can do is bounded by `job_gate`: stop the victim or its job. There are channels that the gate does not see. So:

- the server takes a message over TLS only if its origin is the certificate's own: a site's or its jobs' for a site's,
  an administrator's session for an administrator's; and only if it is for the server, which passes nothing on;
- a site takes messages from its own processes and from the server. What other sites send, it never decodes;
- requests come on the channels of `FROM_SERVER`, `FROM_SITE` and `FROM_ADMIN`. Others are for a party's own processes
  (commands to its jobs, what its jobs report) or tell about its machine (`_net_manager`).

The checks are there before a cell begins to listen. They do not look at what a party's own processes send each other,
which is plain TCP on loopback: whoever has an account on a party's machine is trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

log = logging.getLogger("bilateral.gate")
ANY: Final[frozenset[str]] = frozenset()
"""In place of a list of topics."""
_ALL: Final = {
    CellChannel.AUX_COMMUNICATION: ANY,  # a job's life: it begins, beats and ends
    CellChannel.RETURN_ONLY: ANY,  # answers, as streams
    OBJ_DOWNLOADER_CHANNEL: ANY,  # large parts of a message, by names that nobody can guess
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
}
FROM_SERVER: Final[Mapping[str, frozenset[str]]] = {
    **_ALL,
    CellChannel.CLIENT_MAIN: ANY,  # commands, which `job_gate` looks at
    "collab": ANY,  # calls of a job's published methods
}
FROM_SITE: Final[Mapping[str, frozenset[str]]] = {
    **_ALL,
    CellChannel.SERVER_MAIN: ANY,  # registration, heartbeats
    CellChannel.SERVER_COMMAND: frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}),
}
FROM_ADMIN: Final[Mapping[str, frozenset[str]]] = {**_ALL, CellChannel.SERVER_MAIN: ANY, CellChannel.HCI: ANY}


@dataclass(frozen=True)
class Envelope:
    """What a message says about itself. `asks`: channel and topic of a request, those of its content for a stream."""

    origin: str
    destination: str
    asks: tuple[str, str] | None

    @property
    def sender(self) -> str:
        return str(FQCN.split(self.origin)[0])

    @property
    def receiver(self) -> str:
        return str(FQCN.split(self.destination)[0])

    def keeps_to(self, channels: Mapping[str, frozenset[str]]) -> bool:
        """Is it an answer, or a request on one of these channels?"""
        if self.asks is None:
            return True
        channel, topic = self.asks
        topics = channels.get(channel)
        return topics is not None and (topics is ANY or topic in topics)


def guard_cells() -> None:
    """Put the checks before every cell that starts in this process from now on."""
    start = CoreCell.start
    if getattr(start, "is_guarded", False):
        return

    def guarded_start(cell: Any) -> None:
        if check := check_for(cell.get_fqcn()):
            cell.add_incoming_filter("*", "*", check)
        start(cell)

    guarded_start.is_guarded = True  # type: ignore[attr-defined]
    CoreCell.start = guarded_start


def check_for(cell: str) -> Callable[[Message], Message | None] | None:
    """The check before a cell of this name. An administrator's has none, and a server's jobs' have their server's."""
    path = FQCN.split(cell)
    if path[0] == FQCN.ROOT_SERVER:
        return _check_at_server if len(path) == 1 else None
    return None if is_valid_admin_client_name(cell) else _at_site(path[0])


def server_takes(envelope: Envelope, certificate: str) -> bool:
    """Does the server take this from the owner of a certificate? Only administrators' names are e-mail addresses."""
    if envelope.receiver != FQCN.ROOT_SERVER:
        return False
    if "@" in certificate:
        return is_valid_admin_client_name(envelope.origin) and envelope.keeps_to(FROM_ADMIN)
    return envelope.sender == certificate != FQCN.ROOT_SERVER and envelope.keeps_to(FROM_SITE)


def site_takes(envelope: Envelope, site: str) -> bool:
    """Does a site take this?"""
    if envelope.sender == FQCN.ROOT_SERVER:
        return envelope.keeps_to(FROM_SERVER)
    return envelope.sender == site


def _check_at_server(message: Message) -> Message | None:
    certificate = message.get_prop(MessagePropKey.COMMON_NAME)
    if not certificate:  # a process of the server's own, which connects on this machine and without TLS
        return None
    return None if server_takes(_envelope(message), str(certificate)) else _refuse(f"of {certificate}")


def _at_site(site: str) -> Callable[[Message], Message | None]:
    def check_at_site(message: Message) -> Message | None:
        return None if site_takes(_envelope(message), site) else _refuse("of another party")

    return check_at_site


def _refuse(whose: str) -> Message:
    log.error("a message %s was refused: it came under another name, or asked what it may not ask here", whose)
    return make_reply(ReturnCode.UNAUTHENTICATED, "not taken here")


def _envelope(message: Message) -> Envelope:
    def text(header: str) -> str:
        return str(message.get_header(header) or "")

    asks = None
    if text(MessageHeaderKey.MSG_TYPE) not in (MessageType.REPLY, MessageType.RETURN):
        asks = (text(MessageHeaderKey.CHANNEL), text(MessageHeaderKey.TOPIC))
        if asks[0] == STREAM_CHANNEL:  # data, or word about data: received, failed
            inner = (text(StreamHeaderKey.CHANNEL), text(StreamHeaderKey.TOPIC))
            asks = inner if asks[1] == STREAM_DATA_TOPIC else None
    return Envelope(text(MessageHeaderKey.ORIGIN), text(MessageHeaderKey.DESTINATION), asks)
