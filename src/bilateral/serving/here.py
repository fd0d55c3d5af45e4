"""The three parties as objects of one process: a simulation, in which this process sees everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bilateral.protocols import wire
from bilateral.protocols.mask.keys import Identity
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness
from bilateral.serving.asking import AskingSession
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.messages import FROM_DEALER, TO_ASKING, TO_DEALER, TO_SERVER
from bilateral.serving.model import ServedModel
from bilateral.serving.server import AnswerServer, Conditions, Counter

CLIENT: Final = "client"
DEALER: Final = "dealer"


def simulated_session(
    model: ServedModel, conditions: Conditions, counter: Counter, randomness: Randomness
) -> AskingSession:
    """A client's session, not opened yet, with a server and a dealer behind it. Messages travel encoded."""
    identities = {name: Identity.generate(randomness.child("identity", name)) for name in (CLIENT, DEALER)}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    dealer = AnswerDealer(DEALER, identities[DEALER], pinned, randomness.child(DEALER))
    tell_dealer = _carried(dealer.handle, TO_DEALER, FROM_DEALER, SERVER, DEALER)
    server = AnswerServer(model, conditions, DEALER, tell_dealer, {CLIENT: counter}, pinned, randomness.child(SERVER))
    tell_server = _carried(server.session(CLIENT).handle, TO_SERVER, TO_ASKING, CLIENT, SERVER)
    return AskingSession(CLIENT, identities[CLIENT], DEALER, pinned, randomness.child(CLIENT), tell_server)


def _carried(
    handle: Callable[[Message], Message],
    there: tuple[type[Message], ...],
    back: tuple[type[Message], ...],
    sender: str,
    receiver: str,
) -> Callable[[Message], Message]:
    def tell(message: Message) -> Message:
        reply = handle(wire.decode(wire.encode(message), there, sender))
        return wire.decode(wire.encode(reply), back, receiver)

    return tell
