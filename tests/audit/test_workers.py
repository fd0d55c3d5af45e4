from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
import torch

from bilateral.audit.workers import WorkerError, run_jobs
from bilateral.errors import DataError

NAMES = ["one", "two", "three"]
HANG = 900.0


def square(name, tell):
    tell(0.5, "half way")
    if name == "two":
        raise DataError("two has no samples.", remedy="Give it some.")
    return {"name": name, "process": os.getpid(), "tensor": torch.full((3,), float(len(name)))}


def stumble(name, tell):
    raise KeyError(f"bug in {name}")


def die(name, tell):
    os._exit(1)


def hang(name, tell):
    tell(0.1, "asleep")
    if name != "one":
        threading.Event().wait(HANG)
    return name


def never():
    return False


@pytest.mark.parametrize("num_workers", [1, 2])
def test_all_work_is_done_once_and_what_a_user_can_mend_is_told(num_workers):
    told = []
    done = {one.name: one for one in run_jobs(square, NAMES, num_workers, lambda *what: told.append(what), never)}
    assert sorted(done) == sorted(NAMES)
    assert "two has no samples" in done.pop("two").error
    for one in done.values():
        assert one.error == ""
        assert torch.equal(one.result["tensor"], torch.full((3,), float(len(one.name))))  # it outlives its worker
        assert (one.result["process"] == os.getpid()) == (num_workers == 1)
    assert {name for name, _, _ in told} == set(NAMES)
    assert {(fraction, note) for _, fraction, note in told} == {(0.5, "half way")}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_bug_is_told_with_its_traceback_and_is_never_a_result(num_workers):
    done = list(run_jobs(stumble, NAMES, num_workers, lambda *_: None, never))
    assert sorted(one.name for one in done) == sorted(NAMES)
    for one in done:
        assert one.result is None
        assert f"bug in {one.name}" in one.error
        assert "in stumble" in one.traceback


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(WorkerError, match="died"):
        list(run_jobs(die, NAMES, 2, lambda *_: None, never))


def test_stopping_ends_the_workers_at_once_and_keeps_what_is_done():
    stop = []
    done = []
    for one in run_jobs(hang, NAMES, 2, lambda *_: None, lambda: bool(stop)):
        done.append(one.name)
        stop.append(1)
    assert done == ["one"]  # the others never end by themselves
    assert multiprocessing.active_children() == []
