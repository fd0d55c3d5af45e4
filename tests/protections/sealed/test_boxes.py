"""A box opens at the client that it was sealed for, in that round, for that step, and nowhere else."""

import pytest
from tests.protocols.mask.harness import RUN, key_rings

from bilateral.errors import ProtocolError, SealedShareError
from bilateral.protections.sealed import boxes
from bilateral.protections.sealed.boxes import BoxContent, open_box, seal_box
from bilateral.protocols import wire
from bilateral.protocols.mask.keys import KeyDirectory

NAMES = ("anna", "bela", "cleo")
CONTENT = BoxContent(b"s" * 32)
TERMS = b"t" * 32


@pytest.fixture
def rings():
    return agreed(key_rings(NAMES))


def agreed(rings, run_id=RUN):
    directory = KeyDirectory(run_id, tuple(rings))
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    return rings


def test_it_opens_with_what_was_put_in(rings):
    box = seal_box(rings["anna"], "bela", 3, TERMS, CONTENT)
    found = open_box(rings["bela"], "anna", 3, TERMS, box)
    assert found.seed == CONTENT.seed


def test_it_shows_nothing_of_what_is_in_it(rings):
    box = seal_box(rings["anna"], "bela", 3, TERMS, CONTENT)
    assert b"BoxContent" not in box
    assert CONTENT.seed not in box
    assert "sss" not in repr(CONTENT)


@pytest.mark.parametrize(
    ("opener", "dealer", "round_index", "terms"),
    [
        ("cleo", "anna", 3, TERMS),  # another client
        ("bela", "cleo", 3, TERMS),  # another dealer
        ("bela", "anna", 4, TERMS),  # another round
        ("bela", "anna", 3, b"u" * 32),  # another step
    ],
)
def test_it_does_not_open_elsewhere(rings, opener, dealer, round_index, terms):
    box = seal_box(rings["anna"], "bela", 3, TERMS, CONTENT)
    with pytest.raises(SealedShareError, match=f"the box that {dealer} sealed does not open") as caught:
        open_box(rings[opener], dealer, round_index, terms, box)
    assert caught.value.dealer == dealer


def test_it_does_not_open_in_the_other_direction(rings):
    box = seal_box(rings["anna"], "bela", 3, TERMS, CONTENT)
    with pytest.raises(SealedShareError):
        open_box(rings["anna"], "bela", 3, TERMS, box)


def test_it_does_not_open_in_another_run(rings):
    others = agreed(key_rings(NAMES, run_id=b"run 8"), b"run 8")
    box = seal_box(rings["anna"], "bela", 3, TERMS, CONTENT)
    with pytest.raises(SealedShareError):
        open_box(others["bela"], "anna", 3, TERMS, box)


@pytest.mark.parametrize("harm", [lambda box: box[:-1], lambda box: b"", lambda box: box[:-1] + bytes([box[-1] ^ 1])])
def test_it_does_not_open_if_it_was_changed_on_its_way(rings, harm):
    box = seal_box(rings["anna"], "bela", 3, TERMS, CONTENT)
    with pytest.raises(SealedShareError):
        open_box(rings["bela"], "anna", 3, TERMS, harm(box))


def test_a_stranger_has_no_box(rings):
    with pytest.raises(ProtocolError, match="'dora' is no other client"):
        open_box(rings["bela"], "dora", 3, TERMS, b"box")


def test_what_is_no_content_is_refused_by_the_dealers_name(rings, monkeypatch):
    with pytest.raises(SealedShareError, match="no seed of 32 bytes"):
        short = seal_box(rings["anna"], "bela", 3, TERMS, BoxContent(b"s"))
        open_box(rings["bela"], "anna", 3, TERMS, short)
    monkeypatch.setattr(boxes, "encode", lambda content: wire.encode(content)[:-1])
    cut = seal_box(rings["anna"], "bela", 4, TERMS, CONTENT)
    with pytest.raises(SealedShareError, match="holds something else") as caught:
        open_box(rings["bela"], "anna", 4, TERMS, cut)
    assert caught.value.dealer == "anna"
