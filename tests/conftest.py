"""What all tests share: no network, the same draws every time, and no verdict by the clock.

Hypothesis takes the same examples, and the global generators begin anew with every test and every fixture, whatever
seed pytest-randomly drew and whatever ran before: what fails, fails again. `HYPOTHESIS_PROFILE=search pytest ...` looks
for new examples, and there pytest-randomly's seed (printed at the start) decides the global generators' draws.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import random
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, database=None, **_NO_CLOCK)
settings.register_profile("search", **_NO_CLOCK)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
settings.load_profile(_PROFILE)

# Tests run in parallel processes: one thread each, for BLAS too, whose threads spin while they wait for each other. On
# two busy cores a small fit by scikit-learn took 36 times the work that it takes with one. What is loaded by now is
# told; what is loaded later, and the processes that tests start, read the environment.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
threadpool_limits(1)  # of threadpoolctl, which scikit-learn brings
torch.set_num_threads(1)


def _refuse_the_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Tests need no network: whoever calls another machine is stopped before a packet leaves."""
    if event == "socket.connect" and isinstance(address := arguments[1], tuple):
        host = str(address[0])
        if host != "localhost" and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            raise AssertionError(f"a test calls {host}; tests stay on this machine")


sys.addaudithook(_refuse_the_network)


_LONGEST_FIRST = (
    "tests/engine/flare/test_faults.py",
    "tests/engine/flare/test_deployment.py",
    "tests/engine/flare/",
    "tests/audit/topics/swapped/",
    "tests/audit/topics/shared/",
    "tests/audit/topics/",
    "tests/bench/",
)


def pytest_configure(config: pytest.Config) -> None:
    """Under `--dist loadfile` pytest-xdist would put files with most tests first; those that take minutes have few."""
    config.option.loadscopereorder = False
    config.option.randomly_reset_seed = False  # the order is pytest-randomly's, the seeds are ours


def _begin_anew(config: pytest.Config, name: str) -> None:
    """Python's, numpy's and torch's global generators, by the name of who will draw from them."""
    drawn = config.getoption("randomly_seed", 0) if _PROFILE == "search" else 0
    seed = crc32(f"{drawn} {name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """What many tests share must not depend on which of them comes first."""
    _begin_anew(request.config, f"{fixturedef.baseid}::{fixturedef.argname}[{request.param_index}]")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    _begin_anew(pyfuncitem.config, pyfuncitem.nodeid)
    return (yield)


@pytest.hookimpl(trylast=True)  # after pytest-randomly, whose order stays within each part
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes begin first, so that no worker waits for another's last one."""
    items.sort(key=lambda item: next((n for n, path in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(path)), 99))


def pytest_collection_finish() -> None:
    """Millions of objects are there for good by now; Python need not look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real public datasets; tests that need it are skipped where it is absent."""
    named = os.environ.get("BILATERAL_DATA")
    directory = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"no real data: {directory} is absent; set BILATERAL_DATA to the folder that has them")
    return directory
