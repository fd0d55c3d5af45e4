"""Who a FLARE message comes from, and what they may ask: checks before every message that a cell of a party takes.

A cell is FLARE's end of the wires in one process; a party has one in its parent process and one in each job's. FLARE
binds a message's origin to the token that its sender got at registration, as long as that token is registered. A site
that registers anew keeps its old token, which is still signed, and bound to nothing. Nor does a site ask who commands
it. Without these checks (live, tests/engine/flare/test_dishonest_site.py, with the checks taken out): a site's commands
were taken by another site when they came under its own name with either token, and under the names of the server and of
the victim with the old token. So:

- the server takes a message over TLS only if its origin is the certificate's own: a site's or its jobs' for a site's,
  an administrator's session for an administrator's;
- a site takes messages from its own processes and from the server. What other sites send, it never decodes;
- the server asks a site on the channels of `FROM_SERVER` only. Others are for a party's own processes (its jobs'
  commands) or tell about its machine (`_net_manager`: settings, threads, connections).

The checks are there before a cell begins to listen. They do not look at what a party's own processes send each other,
which is plain TCP on loopback: whoever has an account on a party's machine is trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessagePropKey, MessageType, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

log = logging.getLogger("bilateral.gate")
FROM_SERVER: Final = frozenset(
    {
        CellChannel.CLIENT_MAIN,  # commands, which `job_gate` looks at
        CellChannel.AUX_COMMUNICATION,  # a job's life: it begins, beats and ends
        CellChannel.RETURN_ONLY,
        "collab",  # calls of a job's published methods
    }
)
"""Channels on which a server asks a site."""
_START: Final = "start"


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
    setattr(CoreCell, _START, guarded_start)


def check_for(cell: str) -> Callable[[Message], Message | None] | None:
    """The check before a cell of this name. An administrator's cell has none, and a server's jobs have their server's."""
    path = FQCN.split(cell)
    if path[0] == FQCN.ROOT_SERVER:
        return _check_at_server if len(path) == 1 else None
    return None if is_valid_admin_client_name(cell) else _at_site(path[0])


def is_own_origin(origin: str, certificate: str) -> bool:
    """May the owner of a certificate send under this origin? Only administrators' names are e-mail addresses."""
    if "@" in certificate:
        return is_valid_admin_client_name(origin)
    root = FQCN.split(origin)[0]
    return root == certificate and root != FQCN.ROOT_SERVER


def may_send_to_site(site: str, origin: str, asks: str | None) -> bool:
    """Does a site take a message of this origin? `asks`: the channel that it asks on; None: it answers the site."""
    root = FQCN.split(origin)[0]
    return root == site or (root == FQCN.ROOT_SERVER and (asks is None or asks in FROM_SERVER))


def _check_at_server(message: Message) -> Message | None:
    certificate = message.get_prop(MessagePropKey.COMMON_NAME)
    if not certificate:  # a process of the server's own, which connects on this machine and without TLS
        return None
    if is_own_origin(_text(message, MessageHeaderKey.ORIGIN), str(certificate)):
        return None
    log.error("%s sent a message under a name that is not its own; it was refused", certificate)
    return make_reply(ReturnCode.UNAUTHENTICATED, "the origin is not the sender's")


def _at_site(site: str) -> Callable[[Message], Message | None]:
    def check_at_site(message: Message) -> Message | None:
        if may_send_to_site(site, _text(message, MessageHeaderKey.ORIGIN), _asks(message)):
            return None
        log.error("a message that is not for this site to take was refused")
        return make_reply(ReturnCode.UNAUTHENTICATED, "this site does not take that message")

    return check_at_site


def _asks(message: Message) -> str | None:
    """The channel that a message asks on, which for a stream is the one that its content is for."""
    if _text(message, MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return None
    channel, topic = _text(message, MessageHeaderKey.CHANNEL), _text(message, MessageHeaderKey.TOPIC)
    if channel != STREAM_CHANNEL:
        return channel
    return _text(message, StreamHeaderKey.CHANNEL) if topic == STREAM_DATA_TOPIC else None


def _text(message: Message, header: str) -> str:
    return str(message.get_header(header) or "")
