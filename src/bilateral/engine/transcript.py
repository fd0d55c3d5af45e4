"""Who sent what to whom. Costs are counted from it, and attacks will see an adversary's slice of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER


@dataclass(frozen=True)
class Entry:
    """One message on its way."""

    round_index: int
    sender: str
    receiver: str
    message: Message


@dataclass
class Transcript:
    """Counts bytes in both directions; keeps the messages themselves only if asked to (they are large)."""

    keep_messages: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    num_messages: int = 0
    entries: list[Entry] = field(default_factory=list)

    def record(self, round_index: int, sender: str, receiver: str, message: Message) -> None:
        self.num_messages += 1
        if receiver == SERVER:
            self.bytes_up += message.num_bytes
        else:
            self.bytes_down += message.num_bytes
        if self.keep_messages:
            self.entries.append(Entry(round_index, sender, receiver, message))

    def seen_by(self, party: str) -> Iterator[Entry]:
        """What a party sent or received: all that an honest-but-curious party has."""
        return (e for e in self.entries if party in (e.sender, e.receiver))
