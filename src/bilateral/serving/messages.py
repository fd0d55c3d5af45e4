"""What is said when a model answers on shares. The asking party speaks first, and the server answers; so does a dealer.

| from | to | message | the answer |
|---|---|---|---|
| asking | server | `AskingRequest` | `KeyRequest`; the server asks the dealer for its key too |
| asking | server | `KeyAnnouncement` | `Roster` |
| asking | server | `Joined` | `Service`: what is served, and the weights under a mask |
| asking | server | `Ask`: counted at once | `AnswerBegin`: the box of its dealer, the server's first words |
| asking | server | `AnswerTurn`, again and again | `AnswerTurnReply` |
| server | dealer | `KeyRequest`, `Roster` | `KeyAnnouncement`, `Joined` |
| server | dealer | `OpenDealing` | `DealingOpened`: the seed of the session's masks of weights |
| server | dealer | `DealAnswers` | `AnswersDealt`: for the server its part and a seed, a box for the asking party |
| server | dealer | `CloseDealing` | `Joined` |

Whatever is not done is a `Refused`. A session has keys of its own, so nothing of one is of any use in another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.messages import Message

SPENT: Final = "spent"
OUT_OF_RANGE: Final = "out of range"
NOT_DONE: Final = "not done"


@dataclass(frozen=True)
class AskingRequest(Message):
    """The first word of a session."""


@dataclass(frozen=True)
class Joined(Message):
    """What was said is taken over."""


@dataclass(frozen=True)
class Refused(Message):
    """`why`: `SPENT`, `OUT_OF_RANGE` or `NOT_DONE`; `reason` is for people."""

    why: str
    reason: str


@dataclass(frozen=True, repr=False)
class Service(Message):
    """`reveal`: the most that is revealed. `used`: of the client's questions, before this session. `weights`: under
    masks, for the session."""

    circuit: str
    reveal: str
    batch_size: int
    limit: int
    used: int
    dealer: str
    dataset: str
    task: str
    class_names: tuple[str, ...]
    weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class Ask(Message):
    """So many questions together. `serial` counts a session's asking from 0."""

    serial: int
    count: int
    reveal: str


@dataclass(frozen=True, repr=False)
class AnswerBegin(Message):
    """`seed`: what server and asking party have in common, unknown to the dealer. `used`: these questions too."""

    serial: int
    used: int
    seed: bytes
    box: bytes
    parts: tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class AnswerTurn(Message):
    """`number` counts the turns of one asking from 0; the reply has the same."""

    serial: int
    number: int
    parts: tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class AnswerTurnReply(Message):
    serial: int
    number: int
    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class OpenDealing(Message):
    """Masks for this circuit's weights, in the session of these keys."""

    run_id: bytes
    circuit: str


@dataclass(frozen=True, repr=False)
class DealingOpened(Message):
    seed: bytes


@dataclass(frozen=True)
class DealAnswers(Message):
    run_id: bytes
    serial: int
    count: int
    reveal: str


@dataclass(frozen=True, repr=False)
class AnswersDealt(Message):
    serial: int
    seed: bytes
    box: bytes
    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class CloseDealing(Message):
    """The session is over."""

    run_id: bytes


TO_SERVER: Final = (AskingRequest, KeyAnnouncement, Joined, Ask, AnswerTurn)
TO_ASKING: Final = (KeyRequest, Roster, Service, AnswerBegin, AnswerTurnReply, Refused)
TO_DEALER: Final = (KeyRequest, Roster, OpenDealing, DealAnswers, CloseDealing)
FROM_DEALER: Final = (KeyAnnouncement, Joined, DealingOpened, AnswersDealt, Refused)
