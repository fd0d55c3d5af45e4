"""JSON and TOML of others: whatever is no document of ours is one kind of error."""

import json

import pytest
import tomli_w

from bilateral.documents import MAX_DEPTH, MAX_KEY_PARTS, parse_json, parse_toml
from tests.fuzz.guard import judge


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 500, 990, 5_000, 200_000])
def test_deep_nesting_is_a_value_error_in_json_and_in_toml(depth):
    for parse, text in ((parse_json, nested(depth)), (parse_json, '{"a":' * depth + "1" + "}" * depth)):
        with pytest.raises(ValueError, match="nested"):
            parse(text)
    with pytest.raises(ValueError, match="nested"):
        parse_toml(f"x = {nested(depth)}")


def test_documents_as_deep_as_allowed_are_read():
    assert json.dumps(parse_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    assert parse_toml(f"x = {nested(40)}")["x"] is not None


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '["\\ud800"]', "9" * 5000, "[1,", b"\xff", ""])
def test_half_characters_and_endless_numbers_are_value_errors(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 5000 + "b = 1",
        "[" + "a." * 5000 + "b]",
        '"a".' * 5000 + "b = 1",
        "a . " * 5000 + "b = 1",
        "x = " + "9" * 5000,
    ],
)
def test_a_key_of_thousands_of_parts_is_refused_before_it_takes_memory(text):
    def parse():
        with pytest.raises(ValueError):
            parse_toml(text)

    assert judge(parse).offence == ""


def test_lines_with_many_dots_that_are_no_keys_are_read():
    values = {"x": [0.5 + n for n in range(500)], "text": "one. two. three. " * 30, "a": {"b": {"c": 1}}}
    assert parse_toml(tomli_w.dumps(values)) == values
    assert parse_toml(f"{'.'.join('a' * (MAX_KEY_PARTS - 1))} = 1")
