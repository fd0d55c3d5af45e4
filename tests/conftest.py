"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests run in parallel processes


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real public datasets; tests that need it are skipped where it is absent."""
    named = os.environ.get("BILATERAL_DATA")
    directory = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"no real data: {directory} is absent; set BILATERAL_DATA to the folder that has them")
    return directory
