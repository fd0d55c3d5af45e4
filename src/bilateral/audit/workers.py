"""Experiments on several cores: processes that stay, each with one thread, and one pipe each for work and progress.

Work that fails, by a user's fault or by a bug, is told as failed, and the rest goes on. A worker that dies is an error.
Stopping ends the processes at once; what was done is already told.
"""

from __future__ import annotations

import multiprocessing as mp
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bilateral.errors import BilateralError

Job = Callable[[str, Callable[[float, str], None]], Any]
"""Does the named piece of work; is given a way to say how far it is. Must be picklable (a function of a module)."""
PATIENCE = 0.2
SECONDS_BETWEEN_NOTES = 0.3


class WorkerError(RuntimeError):
    """A worker that was killed."""


@dataclass(frozen=True)
class TaskDone:
    """A piece of work that ended: with a result, or with an error; `traceback` if that was nobody's fault but ours."""

    name: str
    result: Any
    error: str
    seconds: float
    traceback: str = ""


def run_jobs(
    job: Job,
    names: Sequence[str],
    num_workers: int,
    on_progress: Callable[[str, float, str], None],
    should_stop: Callable[[], bool],
) -> Iterator[TaskDone]:
    """Do all named work, yielding each piece as it ends. With one worker it happens here, without processes."""
    if num_workers == 1 or len(names) == 1:
        yield from _run_here(job, names, on_progress, should_stop)
    else:
        yield from _run_in_processes(job, names, min(num_workers, len(names)), on_progress, should_stop)


def _run_here(
    job: Job, names: Sequence[str], on_progress: Callable[[str, float, str], None], should_stop: Callable[[], bool]
) -> Iterator[TaskDone]:
    for name in names:
        if should_stop():
            return
        yield _attempt(job, name, partial(on_progress, name))


def _attempt(job: Job, name: str, tell: Callable[[float, str], None]) -> TaskDone:
    started = time.perf_counter()
    result, error, trace = None, "", ""
    try:
        result = job(name, tell)
    except BilateralError as refused:
        error = str(refused)
    except Exception as bug:  # told, never swallowed: one broken experiment must not cost the others' work
        error, trace = f"an error in the audit itself ({type(bug).__name__}: {bug})", traceback.format_exc()
    return TaskDone(name, result, error, time.perf_counter() - started, trace)


def _run_in_processes(
    job: Job,
    names: Sequence[str],
    num_workers: int,
    on_progress: Callable[[str, float, str], None],
    should_stop: Callable[[], bool],
) -> Iterator[TaskDone]:
    waiting, busy = list(names), 0
    with _started(job, num_workers) as connections:
        for connection in connections:
            connection.send(waiting.pop(0))
            busy += 1
        while busy and not should_stop():
            for ready in wait(connections, PATIENCE):
                connection = next(one for one in connections if one is ready)
                told = _receive(connection)
                if isinstance(told, tuple):
                    on_progress(*told)
                    continue
                busy -= 1
                if waiting:
                    connection.send(waiting.pop(0))
                    busy += 1
                yield told


def _receive(connection: Connection) -> TaskDone | tuple[str, float, str]:
    try:
        content = connection.recv()
    except EOFError as ended:
        raise WorkerError("A worker of the audit died; perhaps memory ran out.") from ended
    # Pickled in the worker by the plain pickler: torch's own would hand over shared memory that dies with the worker.
    told: TaskDone | tuple[str, float, str] = pickle.loads(content)
    return told


@contextmanager
def _started(job: Job, num_workers: int) -> Iterator[list[Connection]]:
    context = mp.get_context("spawn")  # a fork would inherit torch's locked threads
    processes, connections = [], []
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        yield connections
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for connection in connections:
            connection.close()


def _work(job: Job, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    while True:
        name = connection.recv()
        last = 0.0

        def tell(fraction: float, note: str, name: str = name) -> None:
            nonlocal last
            if time.monotonic() - last > SECONDS_BETWEEN_NOTES:
                last = time.monotonic()
                connection.send(pickle.dumps((name, fraction, note)))

        connection.send(pickle.dumps(_attempt(job, name, tell)))
