"""One case under guard: which exception came out, how much memory it took, how long the processor worked.

Memory is decided by the operating system and not by a clock: before a case the address space of the process is limited
to what it has and 100 MB more (RLIMIT_AS), so that memory which is asked for and never touched counts too. Whoever asks
for more gets a `MemoryError`; it is looked for behind every exception (its causes), so that no reader can make a typed
error of it. The figure reported is the growth of the resident memory's high-water mark.

In a process that has freed much, room is left that the limit does not see: there the guard may miss something, but
never blames anybody wrongly. The worker's process is a fresh one.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bilateral.errors import BilateralError

LIMIT_BYTES = 100 << 20
_PAGE = resource.getpagesize()
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "Unable to allocate", "Cannot allocate memory")
MAX_MESSAGE = 20_000
"""Characters of an error: it may quote what came, and must not be as large."""


@dataclass(frozen=True)
class Verdict:
    """`outcome`: "accepted" or the name of a typed error. `offence`: what should not have been, or ""."""

    outcome: str
    offence: str
    num_bytes: int
    seconds: float


def judge(work: Callable[[], object]) -> Verdict:
    """Do the work under guard."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError):  # not every container lets one; the figure is then that of the largest case so far
        Path("/proc/self/clear_refs").write_text("5")  # begins the high-water mark anew
    virtual, resident = (int(text) * _PAGE for text in Path("/proc/self/statm").read_text().split()[:2])
    resource.setrlimit(resource.RLIMIT_AS, (virtual + LIMIT_BYTES, hard))
    outcome, offence = "accepted", ""
    started = time.process_time()
    try:
        work()
    except BilateralError as error:
        outcome = type(error).__name__
        offence = _hidden(error) or (
            f"{outcome} of {len(str(error))} characters" if len(str(error)) > MAX_MESSAGE else ""
        )
    except Exception as error:
        outcome = offence = type(error).__name__
        offence += f": {str(error)[:200]} ({_hidden(error)}) at {_where(error)}"
    finally:
        seconds = time.process_time() - started
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    peak = _high_water()
    return Verdict(outcome, offence, max(0, peak - resident), seconds)


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("there is no VmHWM in /proc/self/status")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]


def _hidden(error: BaseException) -> str:
    """An error behind a typed one that says that more than 100 MB were wanted."""
    for one in _chain(error):
        if isinstance(one, MemoryError) or any(words in str(one)[:2000] for words in _OUT_OF_MEMORY):
            return f"wanted more than {LIMIT_BYTES >> 20} MB: {type(one).__name__}: {str(one)[:200]} at {_where(one)}"
    return ""


def _where(error: BaseException) -> str:
    trace, places = error.__traceback__, []
    while trace is not None:
        places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(places[-4:])


def refusal_of(work: Callable[[], object]) -> str:
    """The name of the typed error that comes of it; it must be one, and less than 100 MB may be asked for."""
    found = judge(work)
    assert not found.offence, found.offence
    assert found.outcome != "accepted", "nothing was refused"
    return found.outcome
