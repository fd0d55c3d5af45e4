"""Markup is made of functions; text never becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from bilateral.report.html import Html, el, joined, table


class _Reader(HTMLParser):
    """The slow, obvious oracle: what a browser would make of it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return reader


# What HTML itself cannot hold: a NUL, and carriage returns, which parsers turn into line feeds.
_TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")))


@given(_TEXTS)
def test_a_text_is_shown_and_not_interpreted(text: str) -> None:
    found = _read(el("p", text))
    assert found.tags == ["p"]
    assert found.text == text


@given(_TEXTS)
def test_an_attribute_is_a_value_and_not_markup(text: str) -> None:
    found = _read(el("p", title=text))
    assert found.tags == ["p"]
    assert found.attributes == {"title": text}


def test_elements_nest_and_texts_between_them_stay_texts() -> None:
    markup = el("p", "a < b ", [el("b", "bold"), None, " & more"])
    assert markup == "<p>a &lt; b <b>bold</b> &amp; more</p>"
    assert isinstance(markup, Html)


def test_names_of_attributes_are_those_of_html() -> None:
    assert (
        el("p", class_="x", aria_label="y", hidden=True, lang=None, open=False)
        == '<p class="x" aria-label="y" hidden></p>'
    )
    assert el("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_a_table_has_a_caption_and_headings_for_rows_and_columns() -> None:
    found = _read(table(("a", "b"), [("<x>", "1")], caption="c & d", numeric=(1,)))
    assert found.tags.count("th") == 3
    assert found.tags.count("caption") == 1
    assert found.text == "c & dab<x>1"
    assert joined(()) == ""
