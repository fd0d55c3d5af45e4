"""One file that needs nothing else, and shows whatever texts contain instead of interpreting it."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.audit.samples import (
    BROKEN,
    GUARANTEE,
    HOLDS,
    audit_of,
    distinguisher,
    fitted_secrets,
    inversion,
    membership,
    picture,
)

from bilateral.audit.auditor import Skipped
from bilateral.audit.evidence import Condition
from bilateral.protocols.guarantee import Claim, Leak
from bilateral.report.audit_html import audit_html, write_html
from bilateral.report.audit_pictures import OVERVIEW, write_pictures
from bilateral.report.frame import flat

NASTY = "<script>alert('x')</script> & \"quoted\""
VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Fails on tags that do not close, and keeps which there are and their text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.links, self.names = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.names += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def nasty():
    evidence = replace(
        inversion(),
        attack=NASTY,
        seen=NASTY,
        remark=NASTY,
        target=Condition(NASTY, BROKEN.target.scores),
        positive=Condition(NASTY, BROKEN.positive.scores),
        negative=Condition(NASTY, BROKEN.negative.scores),
    )
    guarantee = replace(
        GUARANTEE,
        protection=NASTY,
        claims=(Claim("single uploads", NASTY, "server", NASTY),),
        leaks=(Leak(NASTY, NASTY, 1),),
    )
    return audit_of([evidence], guarantee, [Skipped(NASTY, NASTY, NASTY)], {"data.options": {"path": NASTY}})


def test_everything_is_escaped(nasty):
    text = audit_html(nasty)
    assert "<script" not in text
    page = Balanced(text)
    assert "script" not in page.tags
    assert "".join(page.words).count(NASTY) >= 12


def test_the_page_needs_nothing_else(tmp_path):
    evidence = [replace(BROKEN, pictures=(picture(),)), fitted_secrets()]
    paths = write_pictures(evidence, tmp_path)
    page = Balanced(audit_html(audit_of(evidence), paths))
    images = [link for link in page.links if not link.startswith("#")]
    assert len(images) == 3
    assert all(link.startswith("data:image/png;base64,") for link in images)
    assert {base64.b64decode(link.split(",")[1]) for link in images} == {path.read_bytes() for path in paths}


def test_every_claim_is_in_short_and_leads_to_its_attacks():
    page = Balanced(audit_html(audit_of([BROKEN, fitted_secrets()])))
    inside = [link.removeprefix("#") for link in page.links if link.startswith("#")]
    assert len(inside) == len(set(inside)) == 6 + 2  # and to the answers, and to the settings
    assert set(inside) <= set(page.names)
    short = "".join(page.words).split("In short")[1].split("How to read it")[0]
    assert "PSNR dB 25.0; controls 26.0 and 9.5" in short
    assert short.count("BROKEN") + short.count("admitted, and found") == 3 + 1
    assert short.count("not tested") == 4 + 2  # in the rows, and in both tallies


def test_questions_stand_first_and_a_broken_claim_is_an_alarm():
    page = audit_html(audit_of([BROKEN]))
    assert page.index("Can the server see a person's record?") < page.index("In short</h2>")
    assert "This plan claims what an attack broke." in page
    assert "This plan claims what an attack broke." not in audit_html(audit_of([HOLDS]))
    assert "yes: an attack did it" in page


def test_nothing_is_called_chance():
    page = audit_html(audit_of([BROKEN, distinguisher(5.0)]))
    assert "chance" not in page.split("Among the protections that there are")[0].lower()


def test_all_parts_are_there():
    text = audit_html(audit_of([BROKEN, membership()], skipped=[Skipped("dp", "Game", "no noise")]))
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles == [
        "What you came to know",
        "In short",
        "What this plan claims",
        "Papers' claims and admitted leaks",
        "Controls and other figures",
        "Not tried",
        "The guarantee",
        "Among the protections that there are",
        "Settings and versions",
    ]
    for word in (
        "keys are pinned",
        "training.rounds",
        "median PSNR dB &gt;= 20",
        "Game: no noise",
        "models without members",
    ):
        assert word in text


def test_writing_draws_the_overview_of_the_whole_audit(tmp_path):
    pictures = tmp_path / "pictures"
    write_pictures([replace(BROKEN, pictures=(picture(),))], pictures)
    of_a_part = (pictures / OVERVIEW).read_bytes()
    page = write_html(audit_of([BROKEN, HOLDS, fitted_secrets()]), pictures, tmp_path / "audit.html")
    assert (pictures / OVERVIEW).read_bytes() != of_a_part
    assert page.read_text(encoding="utf-8").count("<img ") == 2


def test_an_audit_in_which_nothing_was_tried_has_a_page(tmp_path):
    page = write_html(audit_of([]), tmp_path / "none", tmp_path / "audit.html")
    assert "3 not tested" in page.read_text(encoding="utf-8")


def test_settings_are_flat():
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == [("a.b", 1), ("a.c", {}), ("d", [2])]
