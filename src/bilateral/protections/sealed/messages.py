"""What the parties of sealed training say to each other in a round. Clients and dealers talk to the server only.

| from | to | message |
|---|---|---|
| server | dealer | `DealRequest`: deal for these clients |
| dealer | server | `Dealt`: a seed and what was dealt for the server and a box for the client, for each of them |
| server | client | `SealedWeights`: weights under a mask, the client's box; then `SealedModel`, the same to all |
| client | server | `SealedTurn`: what it has to say until it must listen; or `DealComplaint`, `RangeLeft` |
| server | client | `SealedTurnReply`: the server's turn; and so on, until the client uploads ring words |

What is secret in a message is sealed, masked, or for its receiver alone; `repr` is off.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.messages import Message, Question, RoundModel


@dataclass(frozen=True)
class DealRequest(Message):
    """`terms`: digest of the run's public terms (`terms.SealedTerms`), from which the dealer knows what to deal."""

    round_index: int
    clients: tuple[str, ...]
    terms: bytes


@dataclass(frozen=True, repr=False)
class Dealt(Message):
    """In the order of `clients`. `boxes` are for them (`boxes.seal_box`), the rest for the server. `words`: all that is
    dealt for a step (`parties.as_words`)."""

    round_index: int
    clients: tuple[str, ...]
    seeds: tuple[bytes, ...]
    boxes: tuple[bytes, ...]
    words: tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class SealedWeights(Message):
    """`seed`: what server and client have in common, unknown to the dealer. `parts`: the server's first words."""

    round_index: int
    dealer: str
    weights: tuple[Tensor, ...]
    box: bytes
    seed: bytes
    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class SealedModel(RoundModel):
    """The same to all clients. `parameters` are none; `front` is what the network's public front part holds, if it has
    one: clients compute it in the clear."""

    terms: bytes
    front: tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class SealedTurn(Question):
    """`number` counts a client's turns of a round from 0; the reply has the same."""

    round_index: int
    number: int
    parts: tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class SealedTurnReply(Message):
    round_index: int
    number: int
    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class DealComplaint(Question):
    """The client's box does not open, or is not what should be in it. The client is out of the round."""

    round_index: int
    dealer: str


@dataclass(frozen=True)
class RangeLeft(Question):
    """A number left its range, as the client has found, or its batch does not fit.

    `parts`: what it had still to say, so that the server can see for itself.
    """

    round_index: int
    parts: tuple[Tensor, ...] = ()
