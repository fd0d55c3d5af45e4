"""What a server and the sites of a service say besides the messages of a session.

| from | to | message | the answer |
|---|---|---|---|
| server | any site | `CallUp` | `SiteHere` |
| server | a client's site | `WhatNext` | `NobodyAsks`, or the first message of whoever asks there |
| server | a client's site | an answer of the session | the next message of whoever asks; `AskerGone`: that was all |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bilateral.protocols.messages import Message
from bilateral.serving.messages import FROM_DEALER, TO_ASKING, TO_DEALER, TO_SERVER


@dataclass(frozen=True)
class CallUp(Message):
    """Who is there? The first word to a site in a term."""

    plan_digest: str
    version: str


@dataclass(frozen=True)
class SiteHere(Message):
    plan_digest: str
    version: str


@dataclass(frozen=True)
class WhatNext(Message):
    """Does anybody want to ask? The site may wait for somebody for so many milliseconds."""

    milliseconds: int


@dataclass(frozen=True)
class NobodyAsks(Message):
    """Not now."""


@dataclass(frozen=True)
class AskerGone(Message):
    """Who asked has all it wanted, or is gone."""


TO_CLIENT_SITE: Final = (CallUp, WhatNext, *TO_ASKING)
FROM_CLIENT_SITE: Final = (SiteHere, NobodyAsks, AskerGone, *TO_SERVER)
TO_DEALER_SITE: Final = (CallUp, *TO_DEALER)
FROM_DEALER_SITE: Final = (SiteHere, *FROM_DEALER)
