"""Runs that tests of pages share are let go of at the end, with their folders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.report.run_pages import let_go


@pytest.fixture(scope="session", autouse=True)
def no_folder_is_left() -> Iterator[None]:
    yield
    let_go()
