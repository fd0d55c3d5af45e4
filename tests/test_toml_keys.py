"""TOML keys of many parts are refused however they are spelt; all other texts are read as the standard library does."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.documents import MAX_KEY_PARTS, parse_toml
from bilateral.engine.plan import load_plan
from tests.fuzz.guard import refusal_of

PARTS = ["a", "-_9", '"\\""', '"\\\\"', "'\"'", "'\\'", '"#"', "'='", '"[.]"', '""', "''", '"\\u0022"', '"a\\tb"']
VALUES = [
    "1",
    "1.5",
    '"\\""',
    '"\\\\"',
    "'\\'",
    '"""a " b "" c \\""" d"""',
    '"""""a"""""',
    "'''a ' b '' \\'''",
    "'''''a'''''",
    '"""\n# no comment = [\n"""',
    '[1.5, "]", """\n""", [] ]',
    "1979-05-27T07:32:00.999Z",
    '"# no comment"',
    '{a.b.c = \'"\', "}" = 1}',
    "1 # a comment with a \" and a '",
    "[ # \"\n1.5, # '\n]",
]
BEFORE = st.lists(st.sampled_from(VALUES), max_size=4).map(
    lambda found: "".join(f"v{number} = {value}\n" for number, value in enumerate(found))
)
PLACES = [
    "{key} = 1",
    "[{key}]",
    "[[{key}]]",
    "x = {{{key} = 1}}",
    "x = {{y = '}}', {key} = 1}}",
    "x = [\n1, {{ {key} = 1 }}]",
]
PLACES += ["x = [ # '\n{{{key} = 1}}]", 'x = """ \\""" \\""".\n"""\n{key} = 1', "  {key}=1"]


def keys(low, high):
    parts = st.lists(st.sampled_from(PARTS), min_size=low, max_size=high)
    return st.tuples(parts, st.sampled_from([".", " . ", "\t."])).map(lambda found: found[1].join(found[0]))


@given(BEFORE, st.sampled_from(PLACES), keys(MAX_KEY_PARTS + 1, MAX_KEY_PARTS + 8))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_a_long_key_is_refused_wherever_it_stands_and_however_it_is_spelt(before, place, key):
    text = before + place.format(key=key)
    tomllib.loads(text)  # it is TOML
    with pytest.raises(ValueError, match="more than 32 parts"):
        parse_toml(text)


@given(BEFORE, st.sampled_from(PLACES), keys(1, MAX_KEY_PARTS))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_texts_whose_keys_are_short_are_read_as_before(before, place, key):
    text = before + place.format(key=key)
    assert parse_toml(text) == tomllib.loads(text)


@given(st.text("\"'\\.=#[]{},\n a1u", max_size=60).filter(lambda text: text.count(".") < MAX_KEY_PARTS))
@settings(max_examples=1000, deadline=None, derandomize=True)
def test_a_text_with_few_dots_is_what_the_standard_library_makes_of_it(text):
    try:
        expected = tomllib.loads(text)
    except ValueError as error:
        with pytest.raises(ValueError) as caught:
            parse_toml(text)
        assert str(caught.value) == str(error)
    else:
        assert parse_toml(text) == expected


@pytest.mark.parametrize("first", ['"\\""', '"\\\\\\""', "'\"'", '"""\n'])
@pytest.mark.parametrize("place", PLACES)
def test_a_plan_of_kilobytes_takes_no_gigabyte(tmp_path, first, place):
    (tmp_path / "plan.toml").write_text(place.format(key=first + ".a" * 16_000))
    assert refusal_of(lambda: load_plan(tmp_path / "plan.toml")) == "PlanError"


def test_long_texts_without_long_keys_are_looked_through_in_one_pass():
    """Each of these is a trap for a pattern that goes back: quotes that never end, and dots that are no keys."""
    for text in (
        'x = "' + "\\" * 200_000,
        "x = '" + "'" * 200_000,
        "x = [" + "1.5," * 50_000 + "]",
        '"""' + '"' * 200_000,
    ):
        try:
            expected = tomllib.loads(text)
        except ValueError as error:
            with pytest.raises(ValueError) as caught:
                parse_toml(text)
            assert str(caught.value) == str(error)
        else:
            assert parse_toml(text) == expected
