"""Damaged messages and files against every reader of the package: a typed error or a value, and never much memory.

The bounded version is part of the suite. The long one: `pytest -m long tests/fuzz`. See README.md in this folder.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.message_targets import message_types
from tests.fuzz.mutations import mutate_value, put_raw

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the guard reads Linux's /proc")


def tally(kind, count, folder):
    """In a process of its own: it is limited in memory, and a case may end it."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz.worker", kind, str(count), str(folder)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    case = folder / "case"
    where = case.read_text() if case.exists() else "the examples themselves"
    assert ended.returncode == 0, f"ended with {ended.returncode} at {where}: {ended.stderr[-3000:]}"
    return json.loads((folder / "tally.json").read_text())


def assert_only_typed_errors(found, count):
    assert not found["offences"], "\n".join(found["offences"])
    assert found["cases"] == count
    for target, outcomes in found["outcomes"].items():
        refused = set(outcomes) - {"accepted"}
        assert refused or target in found["tolerant"], f"nothing was refused by {target}: the mutations do not reach it"


@linux
def test_mutated_messages_give_typed_errors_and_take_little_memory(tmp_path):
    assert_only_typed_errors(tally("messages", 2_000, tmp_path), 2_000)


@linux
def test_mutated_files_give_typed_errors_and_take_little_memory(tmp_path):
    assert_only_typed_errors(tally("files", 420, tmp_path), 420)


@linux
@pytest.mark.long
@pytest.mark.parametrize(("kind", "count"), [("messages", 100_000), ("files", 10_000)])
def test_many_mutations_give_typed_errors_and_take_little_memory(kind, count, tmp_path, capsys):
    found = tally(kind, count, tmp_path)
    with capsys.disabled():
        print(json.dumps({**found, "offences": len(found["offences"])}, indent=1))  # noqa: T201 (figures to report)
    assert_only_typed_errors(found, count)


SELF_TEST = """
from bilateral.errors import DataError
from tests.fuzz.guard import LIMIT_BYTES, judge

def hide():
    try:
        bytearray(2 * LIMIT_BYTES)  # never touched
    except MemoryError as error:
        raise DataError("The file is corrupt.") from error

def leak():
    raise KeyError("x")

assert "wanted more" in judge(hide).offence
assert judge(lambda: bytes(LIMIT_BYTES // 4)).offence == ""
assert judge(leak).offence.startswith("KeyError")
assert judge(lambda: int("7")).outcome == "accepted"
"""


@linux
def test_the_guard_sees_what_is_asked_for_and_hidden_behind_a_typed_error():
    """In a fresh process: one that has freed much has room that no limit sees."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    subprocess.run([sys.executable, "-c", SELF_TEST], cwd=ROOT, env=environment, check=True)


def test_every_type_of_message_is_among_the_examples():
    from bilateral.learning.vocabulary import TO_CLIENT, TO_SERVER
    from bilateral.runs.hetero.messages import REPLY_OF

    assert {*TO_CLIENT, *TO_SERVER, *REPLY_OF, *REPLY_OF.values()} <= {*message_types()}


def test_a_case_is_the_same_every_time_whatever_came_before():
    from random import Random

    value = {"a": [1, {"b": "text"}], "c": 0.5}
    numbers = range(2_000)
    made = [
        {n: put_raw(json.dumps(mutate_value(value, Random(n)))) for n in order} for order in (numbers, numbers[::-1])
    ]
    assert made[0] == made[1]
    assert value == {"a": [1, {"b": "text"}], "c": 0.5}
