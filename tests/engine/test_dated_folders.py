"""Folders of runs that nobody named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from bilateral.engine.run_directory import new_dated_folder


def test_runs_that_begin_in_the_same_second_have_a_folder_each(tmp_path):
    together = Barrier(8)

    def begin(_):
        together.wait()
        return [new_dated_folder(tmp_path / "runs", "digits:mlp/3") for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        found = [path for paths in threads.map(begin, range(8)) for path in paths]
    assert len(set(found)) == 40
    assert all(path.parent == tmp_path / "runs" and "digits.mlp.3" in path.name for path in found)
