"""Counting rounds: what is spent stays spent."""

import errno
import json
import multiprocessing
import os
import shutil

import pytest
import torch

from bilateral.errors import CheckpointError, ProtocolError
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.round_counter import FileCounter, MemoryCounter
from bilateral.protocols.noise.sound import DistributedGaussian, SoundNoiseSettings
from bilateral.randomness import SeededRandomness


@pytest.fixture(params=["memory", "file"])
def counter(request, tmp_path):
    return MemoryCounter() if request.param == "memory" else FileCounter.create(tmp_path / "spent.json")


def test_a_counter_counts_up_to_its_limit_and_no_further(counter):
    assert [counter.spend(3) for _ in range(5)] == [True, True, True, False, False]
    assert counter.used == 3


def test_without_a_limit_every_round_is_counted(counter):
    assert all(counter.spend(None) for _ in range(5))
    assert counter.used == 5


def test_several_are_counted_at_once_or_none_of_them(counter):
    assert counter.spend(5, 3)
    assert not counter.spend(5, 3)
    assert counter.used == 3
    assert counter.spend(5, 2)
    assert counter.used == 5


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_is_counted_backwards(tmp_path, count):
    with pytest.raises(ValueError, match="one or more"):
        FileCounter.create(tmp_path / "spent.json").spend(5, count)


def test_counters_of_different_things_are_not_taken_for_each_other(tmp_path):
    FileCounter.create(tmp_path / "asked.json", "questions").spend(None, 7)
    with pytest.raises(CheckpointError, match="how many rounds were used"):
        FileCounter(tmp_path / "asked.json")
    assert FileCounter(tmp_path / "asked.json", "questions").used == 7


def make_noise(path, max_rounds=3):
    settings = SoundNoiseSettings(ClipSettings(1.0, "client"), 1.0, 2)
    return DistributedGaussian("anna", settings, SeededRandomness(0), max_rounds=max_rounds, counter=FileCounter(path))


def upload(round_index):
    return Upload(round_index, 1, torch.zeros(1, 5), torch.zeros(0))


def test_a_restart_does_not_reset_the_budget(tmp_path):
    path = tmp_path / "site" / "spent.json"
    FileCounter.create(path)
    first = make_noise(path)
    first.add_noise(upload(0), 0)
    first.add_noise(upload(1), 1)
    again = make_noise(path)
    again.add_noise(upload(2), 2)
    with pytest.raises(ProtocolError, match="anna has taken part in 3 rounds"):
        again.add_noise(upload(3), 3)
    with pytest.raises(ProtocolError, match="anna has taken part in 3 rounds"):
        make_noise(path).add_noise(upload(4), 4)


def test_the_round_is_on_disk_before_its_noise_exists(tmp_path, monkeypatch):
    path, on_disk = tmp_path / "spent.json", []
    FileCounter.create(path)
    noise = make_noise(path)
    drawn = noise._noisy

    def watched(*arguments):
        on_disk.append(json.loads(path.read_text())["rounds"])
        return drawn(*arguments)

    monkeypatch.setattr(noise, "_noisy", watched)
    noise.add_noise(upload(0), 0)
    assert on_disk == [1]


def test_a_crash_while_counting_leaves_the_old_count_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "spent.json"
    counter = FileCounter.create(path)
    counter.spend(None)

    def crash(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        counter.spend(None)
    monkeypatch.undo()
    assert FileCounter(path).used == 1
    assert FileCounter(path).spend(2)
    assert not FileCounter(path).spend(2)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "7", '{"rounds": -1}', '{"rounds": "3"}', '{"rounds": true}', '{"rounds": 1.5}', "[]", "{}"),
        *(
            '{"rounds": null}',
            '{"rounds": NaN}',
            '{"rounds": Infinity}',
            '{"rounds": 1e3}',
            '{"rounds": 0, "rounds": -1}',
        ),
        *("[" * 100_000, f'{{"rounds": {"9" * 5000}}}'),
    ],
    ids=lambda content: content[:20],
)
def test_a_file_that_does_not_say_what_was_spent_is_refused(tmp_path, content):
    path = tmp_path / "spent.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r"spent\.json does not say how many rounds were used"):
        FileCounter(path)
    assert path.read_text() == content


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "spent.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError):
        FileCounter(path)


def test_a_file_that_is_spoilt_during_the_run_is_refused_too(tmp_path):
    counter = FileCounter.create(tmp_path / "spent.json")
    counter.spend(None)
    (tmp_path / "spent.json").write_text("{")
    with pytest.raises(CheckpointError):
        counter.spend(None)


def test_a_file_that_is_missing_counts_as_spent(tmp_path):
    path = tmp_path / "site" / "spent.json"
    with pytest.raises(CheckpointError, match="it is missing, which counts as spent"):
        FileCounter(path)
    assert not path.parent.exists()


@pytest.mark.parametrize("whole_folder", [False, True])
def test_who_deletes_the_file_ends_the_budget_also_during_a_run(tmp_path, whole_folder):
    path = tmp_path / "site" / "spent.json"
    counter = FileCounter.create(path)
    assert counter.spend(3)
    shutil.rmtree(path.parent) if whole_folder else path.unlink()
    for again in (lambda: counter.spend(3), lambda: counter.used, lambda: FileCounter(path)):
        with pytest.raises(CheckpointError, match="counts as spent"):
            again()
    assert not path.exists()


def test_a_counter_does_not_begin_anew(tmp_path):
    path = tmp_path / "spent.json"
    FileCounter.create(path).spend(None)
    with pytest.raises(CheckpointError, match="counts the rounds of a budget already"):
        FileCounter.create(path)
    assert FileCounter(path).used == 1


def _spend_often(path, times):
    counter = FileCounter(path)
    for _ in range(times):
        counter.spend(None)


def test_two_processes_with_one_file_lose_no_round(tmp_path):
    path, fork = tmp_path / "spent.json", multiprocessing.get_context("fork")
    FileCounter.create(path)
    processes = [fork.Process(target=_spend_often, args=(path, 25)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert FileCounter(path).used == 75


def _spend_within(path, limit, times, done):
    counter = FileCounter(path)
    done.put(sum(counter.spend(limit) for _ in range(times)))


def test_two_jobs_at_once_share_one_budget(tmp_path):
    """Whoever comes first: together they get what is left, and not one round more."""
    path, fork = tmp_path / "spent.json", multiprocessing.get_context("fork")
    FileCounter.create(path)
    done = fork.SimpleQueue()
    processes = [fork.Process(target=_spend_within, args=(path, 20, 15, done)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sum(done.get() for _ in processes) == 20
    assert FileCounter(path).used == 20


def test_a_crash_after_a_round_was_paid_for_gives_nothing_back(tmp_path, monkeypatch):
    path = tmp_path / "spent.json"
    FileCounter.create(path)
    noise = make_noise(path, max_rounds=1)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "_noisy", crash)
    with pytest.raises(KeyboardInterrupt):
        noise.add_noise(upload(0), 0)
    with pytest.raises(ProtocolError, match="anna has taken part in 1 rounds"):
        make_noise(path, max_rounds=1).add_noise(upload(0), 0)


def full_disk(_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_round_that_cannot_be_counted_is_not_spent_and_not_done(tmp_path, monkeypatch):
    path = tmp_path / "spent.json"
    FileCounter.create(path)
    noise = make_noise(path)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        noise.add_noise(upload(0), 0)


@pytest.mark.parametrize("name", ["spent.json.lock", "spent.json.partial"])
def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path, name):
    """As when it belongs to somebody else. (Root may write everywhere, so a folder stands in the way here.)"""
    counter = FileCounter.create(tmp_path / "spent.json")
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=r"spent\.json"):
        counter.spend(3)
    assert json.loads((tmp_path / "spent.json").read_text()) == {"rounds": 0}


def test_a_counter_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "spent.json").mkdir()
    with pytest.raises(CheckpointError):
        FileCounter(tmp_path / "spent.json")
