"""Every error of the catalogue is raised by what its page says, and reads: what, where, what to do."""

from __future__ import annotations

import inspect
import re

import pytest

from bilateral import errors
from error_examples import EXAMPLES, message_of

KINDS = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, errors.BilateralError) and found is not errors.BilateralError
]


def test_every_error_has_an_example_and_is_in_the_tree():
    assert set(EXAMPLES) == set(KINDS)
    tree = re.findall(r"[|`-] *-- (\w+Error)", errors.__doc__)
    assert sorted(tree) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_says_what_where_and_what_to_do(kind, tmp_path):
    error = message_of(kind, tmp_path / "empty")
    assert type(error) is kind, repr(error)
    for part in EXAMPLES[kind].says:
        assert part in error.in_full()
    assert error.remedy
    assert error.in_full().endswith(error.remedy)
    assert len(error.in_full()) > len(error.remedy) + 20
    assert "Traceback" not in error.in_full()
    assert not re.search(r"\.\.( |$)|\s\s", error.in_full())


@pytest.mark.parametrize("kind", [*KINDS, errors.BilateralError], ids=lambda kind: kind.__name__)
def test_a_message_without_a_remedy_gets_that_of_its_kind(kind):
    extra = {"dealer": "bela"} if kind is errors.SealedShareError else {}
    bare, own = kind("It is wrong.", **extra), kind("It is wrong.", remedy="Do it right.", **extra)
    assert own.in_full() == str(own) == "It is wrong. Do it right."
    assert str(bare) == "It is wrong."
    if kind is not errors.BilateralError:
        assert bare.in_full() == f"It is wrong. {kind.usual_remedy}"
        assert kind.usual_remedy
