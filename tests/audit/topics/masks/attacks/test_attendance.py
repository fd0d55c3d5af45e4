"""Who took part, from a conversation that is written down by hand."""

from __future__ import annotations

from bilateral.audit.topics.masks.attacks.attendance import presence
from bilateral.engine.transcript import Entry
from bilateral.protocols.messages import Message

SAID = [("server", "anna"), ("anna", "server"), ("server", "bela"), ("bela", "server"), ("server", "anna")]


def entries(pairs, round_index=3):
    return [Entry(round_index, sender, receiver, Message()) for sender, receiver in pairs]


def test_who_was_asked_and_who_answered_to_the_end_is_seen():
    said = entries([*SAID, ("server", "bela"), ("anna", "server"), ("server", "cleo")])
    seen = presence(said, 3, ["anna", "bela", "cleo", "dora"])
    assert seen == {"anna": "stayed", "bela": "dropped", "cleo": "dropped", "dora": "absent"}


def test_other_rounds_say_nothing():
    assert presence(entries(SAID), 4, ["anna", "bela"]) == {"anna": "absent", "bela": "absent"}
