"""Who sent what to whom. Costs are counted from it, and attacks will see an adversary's slice of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER

UP: Final = "up"
DOWN: Final = "down"
_TRAFFIC: Final = "traffic"
"""What a checkpoint's counters of it begin with."""


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
    traffic: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Bytes by (party, direction, kind of message): what each party sent the server, or was sent by it."""

    def record(self, round_index: int, sender: str, receiver: str, message: Message) -> None:
        self.num_messages += 1
        kind = type(message).__name__
        if receiver == SERVER:
            self.bytes_up += message.num_bytes
            self.traffic[sender, UP, kind] += message.num_bytes
        else:
            self.bytes_down += message.num_bytes
            self.traffic[receiver, DOWN, kind] += message.num_bytes
        if self.keep_messages:
            self.entries.append(Entry(round_index, sender, receiver, message))

    def counters(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        detail = {
            "/".join((_TRAFFIC, direction, kind, party)): n for (party, direction, kind), n in self.traffic.items()
        }
        return {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "num_messages": self.num_messages,
            **detail,
        }

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Go on counting from there."""
        self.bytes_up = int(counters["bytes_up"])
        self.bytes_down = int(counters["bytes_down"])
        self.num_messages = int(counters["num_messages"])
        self.traffic.clear()
        for name, count in counters.items():
            first, *rest = name.split("/", 3)
            if first == _TRAFFIC and len(rest) == 3:
                direction, kind, party = rest
                self.traffic[party, direction, kind] = int(count)

    def traffic_rows(self) -> list[dict[str, Any]]:
        """For machines: a row a party, direction and kind of message."""
        return [
            {"party": party, "direction": direction, "message": kind, "megabytes": round(count / 1e6, 6)}
            for (party, direction, kind), count in sorted(self.traffic.items())
        ]

    def seen_by(self, party: str) -> Iterator[Entry]:
        """What a party sent or received: all that an honest-but-curious party has."""
        return (e for e in self.entries if party in (e.sender, e.receiver))
