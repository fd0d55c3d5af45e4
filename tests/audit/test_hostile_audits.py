"""Audits' directories and stored audits whose files are of another form: typed errors that name the file."""

import copy
import json
from pathlib import Path

import pytest

from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.auditor import stored_plan, stored_result
from bilateral.engine.plan import RunPlan
from bilateral.errors import CheckpointError

AUDIT = json.loads((Path(__file__).parents[2] / "docs" / "audits" / "float-masks" / "audit.json").read_text())
ONE = next(one for one in AUDIT["evidence"] if one["positive"] and one["gates"])
DEEP = "[" * 100_000 + "]" * 100_000
TASK = {"kind": "RunPlan", "plan": {}, "effort": "standard", "style": "hardened", "only": []}


@pytest.fixture
def directory(tmp_path):
    made = AuditDirectory.create(tmp_path / "audit", "title", TASK)
    write(made, [ONE])
    assert len(made.finished()["one"][0]) == 1
    return made


def write(directory, evidence):
    (directory.path / "evidence" / "one.json").write_text(json.dumps({"seconds": 1.0, "evidence": evidence}))


def changed(path, value):
    """The evidence with one of its values replaced (or dropped)."""
    found = copy.deepcopy(ONE)
    holder = found
    for key in path[:-1]:
        holder = holder[key]
    if value is KeyError:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return found


SCORES = ("target", "scores", 0)
CHANGES = [
    (("target",), True),
    (("target",), "text"),
    (("target", "scores"), []),
    (("target", "scores"), 7),
    (("target", "what"), 7),
    ((*SCORES, "metric"), KeyError),
    ((*SCORES, "metric"), True),
    ((*SCORES, "metric", "better"), "sideways"),
    ((*SCORES, "metric", "digits"), 10**9),
    ((*SCORES, "metric", "extra"), 1),
    ((*SCORES, "values"), [""]),
    ((*SCORES, "values"), ["nan"]),
    ((*SCORES, "values"), [None]),
    ((*SCORES, "values"), [[1]]),
    ((*SCORES, "values"), [10**400]),
    ((*SCORES, "given_interval"), [1]),
    (("gates",), [7]),
    (("gates", 0, "statistic"), "mode"),
    (("gates", 0, "threshold"), {}),
    (("tests",), "nothing"),
    (("tests",), []),
    (("adversary",), {}),
    (("attack",), 7),
    (("paired",), "yes"),
    (("bound",), "x"),
    (("curves",), [{"title": "t", "x": "x", "y": "y", "lines": {"a": [[1, 2]]}}]),
    (("remark",), KeyError),
]


@pytest.mark.parametrize(("path", "value"), CHANGES, ids=lambda part: str(part)[:40])
def test_evidence_of_another_form_is_a_checkpoint_error(directory, tmp_path, path, value):
    write(directory, [changed(path, value)])
    with pytest.raises(CheckpointError, match=r"one\.json"):
        directory.finished()
    (tmp_path / "audit.json").write_text(json.dumps({**AUDIT, "evidence": [changed(path, value)]}))
    with pytest.raises(CheckpointError, match=r"audit\.json"):
        stored_result(tmp_path / "audit.json")


def test_a_rate_that_is_none_is_a_checkpoint_error(directory):
    metric = {**ONE["target"]["scores"][0]["metric"], "is_rate": True}
    write(directory, [changed(SCORES, {"metric": metric, "values": [0.5], "given_interval": None})])
    with pytest.raises(CheckpointError, match="zeros and ones"):
        directory.finished()


@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 5000, '{"a": ' + "9" * 5000 + "}", "[]", "{}", "\x00"], ids=lambda t: t[:6]
)
def test_files_of_an_audit_that_are_too_deep_or_no_objects_are_checkpoint_errors(directory, tmp_path, text):
    (directory.path / "evidence" / "one.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"one\.json"):
        directory.finished()
    (directory.path / "plan.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"plan\.json"):
        stored_plan(directory.task())
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"audit\.json"):
        stored_result(tmp_path / "audit.json")


def test_a_stored_audit_of_other_types_is_a_checkpoint_error(tmp_path):
    path = tmp_path / "audit.json"
    leaks = AUDIT["guarantee"]["leaks"]
    for changes in (
        {"plan": 7},
        {"protection": {}},
        {"guarantee": {**AUDIT["guarantee"], "leaks": [{**leaks[0], "what": []}]}},
        {"only": [1]},
        {"skipped": [{"name": "x", "title": "y", "reason": {}}]},
        {"seconds": "Infinity..."},
    ):
        path.write_text(json.dumps({**AUDIT, **changes}))
        with pytest.raises(CheckpointError, match=r"audit\.json"):
            stored_result(path)
    with pytest.raises(CheckpointError):
        stored_result(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        *(("claims", name, 7) for name in ("subject", "what", "whom", "assumption")),
        *(("leaks", name, 7) for name in ("what", "whom")),
        *(("leaks", "ledger_line", value) for value in ("7", True, 1.5)),
        *(("skipped", name, 200) for name in ("name", "title", "reason")),
        ("skipped", "more", "text"),
    ],
)
def test_a_stored_text_that_is_a_number_or_the_reverse_is_a_checkpoint_error(tmp_path, where, name, value):
    """A reason that was a number ended the page in an AttributeError."""
    path, parts = tmp_path / "audit.json", copy.deepcopy(AUDIT["guarantee"])
    parts["claims"] = [{"subject": "single uploads", "what": "a", "whom": "b", "assumption": "c"}]
    parts["skipped"] = [{"name": "x", "title": "y", "reason": "z"}]

    def read():
        path.write_text(json.dumps({**AUDIT, "guarantee": parts, "skipped": parts["skipped"]}))
        return stored_result(path)

    assert len(read().guarantee.claims) == len(read().skipped) == 1
    parts[where][0][name] = value
    with pytest.raises(CheckpointError, match=r"audit\.json"):
        read()


@pytest.mark.parametrize("name", [*TASK])
def test_a_task_without_one_of_its_parts_is_a_checkpoint_error(name):
    task = {**TASK, "plan": RunPlan().model_dump(mode="json")}
    assert stored_plan(task) == RunPlan()
    for other in ({key: value for key, value in task.items() if key != name}, {**task, name: 7}, {**task, name: [[]]}):
        with pytest.raises(CheckpointError, match=r"plan\.json"):
            stored_plan(other)
