"""Who a FLARE message comes from: what the certificate of its connection says, not what the message says.

FLARE binds a message's origin to the token that its sender got at registration, as long as that token is registered. A
site that registers anew keeps its old token, which is still signed, and bound to nothing: with it the site could speak
as the server or as another site. Nor does a site ask whether a command comes from the server. So:

- the server refuses a message over TLS whose origin is the server itself, or a site other than the certificate's;
- a site takes commands from the server only.

Live: tests/engine/flare/test_dishonest_site.py.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from functools import partial
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.private.defs import CellChannel
from nvflare.private.fed.server.fed_server import FederatedServer

log = logging.getLogger("bilateral.gate")


def check_senders(party: Any) -> None:
    """Put the checks before a party's connection. `party`: FLARE's server or client object."""
    cell = party.cell.core_cell
    if isinstance(party, FederatedServer):
        names = party.client_manager.name_to_clients
        cell.add_incoming_filter("*", "*", partial(_refuse_borrowed_origin, names))
    else:
        cell.add_incoming_request_filter(CellChannel.CLIENT_MAIN, "*", _refuse_other_commanders)


def is_own_origin(origin: str, certificate: str, sites: Container[str]) -> bool:
    """May the owner of a certificate send under this origin? An administrator's origin is nobody's name."""
    root = FQCN.split(origin)[0]
    if root == certificate:
        return True
    return root != FQCN.ROOT_SERVER and root not in sites and certificate not in sites


def _refuse_borrowed_origin(sites: Container[str], message: CellMessage) -> CellMessage | None:
    certificate = message.get_prop(MessagePropKey.COMMON_NAME)
    if not certificate:  # a process of the server's own, which connects on this machine and without TLS
        return None
    if is_own_origin(str(message.get_header(MessageHeaderKey.ORIGIN, "")), str(certificate), sites):
        return None
    log.error("%s sent a message under a name that is not its own; it was refused", certificate)
    return make_reply(CellReturnCode.UNAUTHENTICATED, "the origin is not the sender's")


def _refuse_other_commanders(message: CellMessage) -> CellMessage | None:
    if message.get_header(MessageHeaderKey.ORIGIN, "") == FQCN.ROOT_SERVER:
        return None
    log.error("a command that does not come from the server was refused")
    return make_reply(CellReturnCode.UNAUTHENTICATED, "only the server sends commands")
