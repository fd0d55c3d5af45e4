"""Who takes part in a round and who drops out, read from who talks (ledger line 12): no content is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from bilateral.engine.transcript import Entry
from bilateral.protocols.transport import SERVER

Presence = Literal["absent", "dropped", "stayed"]


def presence(entries: Sequence[Entry], round_index: int, clients: Sequence[str]) -> dict[str, Presence]:
    """Absent: was sent nothing. Dropped: left something without an answer. Stayed: answered all that it was sent."""
    this_round = [entry for entry in entries if entry.round_index == round_index]
    asked = {entry.receiver for entry in this_round if entry.sender == SERVER}
    answers = Counter(entry.sender for entry in this_round if entry.receiver == SERVER)
    most = max(answers.values(), default=0)
    return {
        name: "absent" if name not in asked else "stayed" if most and answers[name] == most else "dropped"
        for name in clients
    }
