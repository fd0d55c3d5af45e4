"""Checkpoints, exports, plans and what else lies in the directories of runs, written by somebody who means no good."""

import json
from dataclasses import asdict

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.fuzz.formats import _digest
from tests.fuzz.guard import refusal_of
from tests.runs.hetero.test_record import PLAN, record_at
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.events import read_events
from bilateral.engine.plan import load_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import read_run
from bilateral.errors import CheckpointError
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.runs.hetero.plan import load_hetero_plan
from bilateral.runs.hetero.record import HeteroRecord
from bilateral.runs.hetero.state import ClientState, SiteStore
from bilateral.runs.rounds.conductor import _read_counts
from bilateral.runs.rounds.export import ExportCard, export_run, load_exported
from bilateral.runs.rounds.in_process import run

DEEP = "[" * 100_000 + "]" * 100_000
CHOSEN = plan(training__rounds=2, training__checkpoint_every=1, training__momentum=0.9)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "run"
    run(CHOSEN, output=path, reference=False)
    export_run(path, path.parent / "model.safetensors")
    return path


@pytest.fixture
def exported(finished, tmp_path):
    """Writes an export with a changed card or other tensors."""
    with safe_open(finished.parent / "model.safetensors", framework="pt") as file:
        card, tensors = json.loads(file.metadata()["bilateral"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def write(changes=None, text=None, **others):
        target = tmp_path / "model.safetensors"
        content = json.dumps({**card, **(changes or {})}) if text is None else text
        save_file({**tensors, **others}, target, metadata={"bilateral": content})
        return target

    load_exported(write())
    return write


@pytest.mark.parametrize(
    "changes",
    [
        {"input_shape": [2**29]},
        {"input_shape": [2**20, 2**10]},
        {"num_outputs": 2**30},
        {"model_options": {"width": 2**30}},
        {"model": "vgg-7", "input_shape": [3, 2**14, 2**14], "model_options": {}},
        {"model": "resnet-56", "input_shape": [2**30, 8, 8], "model_options": {}},
    ],
    ids=lambda changes: json.dumps(changes)[:40],
)
def test_a_small_export_that_asks_for_gigabytes_is_refused_before_it_is_built(exported, changes):
    path = exported(changes)
    assert path.stat().st_size < 20_000
    assert refusal_of(lambda: load_exported(path)) == "CheckpointError"


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "Infinity"},
        {"dtype": "int8"},
        {"dtype": {}},
        {"dtype": "float64"},
        {"model_options": "width"},
        {"model_options": 7},
        {"model_options": {"input_shape": [3]}},
        {"model_options": {"width": "many"}},
        {"model": ["mlp-3"]},
        {"model": "nothing"},
        {"input_shape": [[30]]},
        {"input_shape": []},
        {"input_shape": [10**30]},
        {"input_shape": 30},
        {"num_outputs": "2"},
        {"num_outputs": True},
        {"class_names": [1, 2]},
        {"class_names": ["one"]},
        {"metrics": {"accuracy": []}},
        {"format": [1]},
        {"format": True},
        {"extra": 1},
    ],
    ids=json.dumps,
)
def test_a_card_of_other_types_is_a_checkpoint_error(exported, changes):
    with pytest.raises(CheckpointError):
        load_exported(exported(changes))


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 5000, "7", "[]", "", "9" * 5000], ids=lambda text: text[:5])
def test_a_card_that_is_none_is_a_checkpoint_error(exported, text):
    with pytest.raises(CheckpointError):
        load_exported(exported(text=text))


def test_tensors_of_other_kinds_are_a_checkpoint_error(exported):
    name = "head.weight"
    for other in (
        torch.ones(2, 12, dtype=torch.float64),
        torch.ones(2, 11),
        torch.ones(2, 12, dtype=torch.float8_e5m2),
    ):
        with pytest.raises(CheckpointError):
            load_exported(exported(**{name: other}))
    with pytest.raises(CheckpointError, match="names"):
        load_exported(exported(more=torch.ones(1)))


def test_what_is_exported_is_what_a_card_can_say(exported):
    card = load_exported(exported()).card
    assert isinstance(card, ExportCard)
    assert load_exported(exported(asdict(card))).card == card


@pytest.fixture
def stored(finished, tmp_path):
    """Writes a checkpoint with changed state or tensors, and a checksum that is right."""
    with safe_open(finished / "checkpoint.safetensors", framework="pt") as file:
        state, tensors = json.loads(file.metadata()["state"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (tmp_path / "plan.toml").write_bytes((finished / "plan.toml").read_bytes())

    def write(text=None, tensors_changed=None, **changes):
        kept = {**tensors, **(tensors_changed or {})}
        kept = {name: tensor for name, tensor in kept.items() if tensor is not None}
        content = json.dumps({**state, **changes, "content": _digest(kept)}) if text is None else text
        save_file(kept, tmp_path / "checkpoint.safetensors", metadata={"state": content})
        return tmp_path

    load_checkpoint(write() / "checkpoint.safetensors")
    return write


@pytest.mark.parametrize(
    "changes",
    [
        {"next_round": float("inf")},
        {"next_round": "2"},
        {"next_round": 1.5},
        {"next_round": -1},
        {"rows": {"a": 1}},
        {"rows": ["round"]},
        {"rows": [{"round": [1]}]},
        {"counters": []},
        {"counters": {"term": "x"}},
        {"counters": {"term": 10**30}},
        {"failed": [7]},
        {"incidents": "none"},
        {"plan_digest": None},
    ],
    ids=repr,
)
def test_a_checkpoint_of_other_types_is_a_checkpoint_error(stored, changes):
    with pytest.raises(CheckpointError):
        load_checkpoint(stored(**changes) / "checkpoint.safetensors")


@pytest.mark.parametrize("text", [DEEP, "7", "{}", "[]"], ids=lambda text: text[:5])
def test_a_state_that_is_none_is_a_checkpoint_error(stored, text):
    with pytest.raises(CheckpointError):
        load_checkpoint(stored(text) / "checkpoint.safetensors")


def names_of(stored):
    return load_checkpoint(stored() / "checkpoint.safetensors").tensors


def test_a_run_does_not_go_on_from_a_state_that_is_not_its_own(stored):
    tensors = names_of(stored)
    momentum = next(name for name in tensors if name.endswith("momentum_buffer"))
    spread = next(name for name in tensors if name.endswith("logit_spread"))
    interval = next(name for name in tensors if name.endswith("/interval"))
    for changed in (
        {momentum: torch.ones(7)},
        {momentum.replace("/0.", "/99."): tensors[momentum]},
        {momentum.replace("/0.", "/x."): tensors[momentum]},
        {spread: None},
        {spread: torch.ones(3)},
        {interval: torch.tensor(float("inf"))},
    ):
        with pytest.raises(CheckpointError):
            run(CHOSEN, output=stored(tensors_changed=changed), resume=True)
    for counters in ({}, {"bytes_up": float("nan")}, {"bytes_up": float("inf")}):
        with pytest.raises(CheckpointError):
            run(CHOSEN, output=stored(counters=counters), resume=True)
    for failed in ([{"x": 1}], [{}]):
        with pytest.raises(CheckpointError):
            run(CHOSEN, output=stored(failed=failed), resume=True)


def test_states_of_heterogeneous_runs_that_are_not_their_own_are_checkpoint_errors(tmp_path):
    directory = RunDirectory.create(tmp_path / "server", PLAN)
    record = record_at((2, 1, 0))
    record.save(directory)
    store = SiteStore(tmp_path / "site", PLAN)
    store.save(ClientState(1, {}, None, [0.5], [0]))
    for path, load in (
        (directory.checkpoint, lambda: HeteroRecord.load(PLAN, record.facts, directory)),
        (tmp_path / "site" / "checkpoint.safetensors", store.load),
    ):
        load()
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
        for row in (
            {},
            {"client": "client-1", "accuracy": "x", "queries": 1},
            {"client": "client-1", "accuracy": None},
        ):
            save_file({}, path, metadata={"state": json.dumps({**state, "rows": [row], "content": _digest({})})})
            with pytest.raises(CheckpointError):
                load()


TOMLS = ("x = " + DEEP, "a." * 5000 + "b = 1", "[" + "a." * 5000 + "b]", "seed = " + "9" * 5000, "x = {" + "a={" * 2000)


@pytest.mark.parametrize("text", TOMLS, ids=lambda text: text[:8])
@pytest.mark.parametrize("load", [load_plan, load_hetero_plan])
def test_a_plan_too_deep_or_too_long_is_a_plan_error(tmp_path, load, text):
    (tmp_path / "plan.toml").write_text(text)
    assert refusal_of(lambda: load(tmp_path / "plan.toml")) == "PlanError"


def test_a_setting_on_the_command_line_that_is_no_toml_is_a_text():
    from bilateral.cli.options import parse_setting

    assert parse_setting(f"x={DEEP}") == ("x", DEEP)
    assert parse_setting("x=" + "9" * 5000) == ("x", "9" * 5000)


def test_a_run_is_watched_whatever_its_files_say(finished, tmp_path):
    (tmp_path / "plan.toml").write_bytes((finished / "plan.toml").read_bytes())
    for name in ("result.json", "privacy.json", "events.jsonl"):
        for text in (DEEP, '{"a":' * 5000, "9" * 5000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
            (tmp_path / name).write_text(text + "\n")
            assert read_run(tmp_path).metrics == {}
            assert list(read_events(tmp_path / name)) == []


def test_counts_and_counters_that_are_none_are_checkpoint_errors(tmp_path):
    path = tmp_path / "counts.json"
    for text in (DEEP, '{"a": Infinity}', '{"a": null}', "[]", "9" * 5000):
        path.write_text(text)
        with pytest.raises(CheckpointError):
            _read_counts(path, ["a"])
        with pytest.raises(CheckpointError):
            assert FileCounter(path).used
