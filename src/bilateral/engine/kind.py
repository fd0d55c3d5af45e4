"""Kinds of run: what the engines must know of one, and the table of those that there are.

A kind is one folder under `bilateral/runs` and one line in `_TABLE` (or one call of `register`, from outside the
package). The engines know no kind: the term shell (`engine/term.py`) locks, resumes, saves and stops; a transport
carries packets between a `ServerRun` and the `SiteParty` of every site.

What a plan (or a job) says is a name in this table, never where code is: see decision 18.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from bilateral.documents import parse_toml
from bilateral.engine.checkpoint import Checkpoint
from bilateral.engine.events import Event
from bilateral.errors import PlanError
from bilateral.learning.secrets import Secrets
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.keys import Identity
from bilateral.protocols.messages import Message

ROUNDS, HETERO, SERVING = "rounds", "hetero", "serving"
ENROLMENT: Final = -1
"""The lane of what is said before the first step. Others, from 0, are a kind's own."""
_TABLE: Final = MappingProxyType(
    {
        ROUNDS: "bilateral.runs.rounds.kind",
        HETERO: "bilateral.runs.hetero.kind",
        SERVING: "bilateral.serving.hosted.kind",
    }
)
"""The kinds of this package, each by the module whose `KIND` it is: imported when it is asked for."""
_added: dict[str, RunKind[Any]] = {}


class Plan(Protocol):
    """What decides a run: a frozen pydantic model."""

    def digest(self) -> str:
        """What checkpoints carry, so that they are not resumed under another plan."""
        ...

    def model_dump_json(self) -> str: ...


P = TypeVar("P", bound=Plan)


class Sites(Protocol):
    """The transport, as the server sees it. Called from many threads."""

    def names(self) -> Sequence[str]:
        """The sites of this term."""
        ...

    def call(self, site: str, lane: int, number: int, packet: list[bytes], timeout: float, /) -> Mapping[str, Any]:
        """`SiteParty.deliver` at the site: its answer, or `SiteSilentError`."""
        ...

    def ping(self, site: str) -> bool | None:
        """Is the site there? None: no answer; False: there and at work; True: with nothing left to do. Never raises."""
        ...


class SiteParty(Protocol):
    """One site in one term, as the transport sees it. Called from many threads; never raises."""

    def deliver(self, lane: object, number: object, packet: object, /) -> dict[str, Any]:
        """The answer to a packet of encoded messages: replies (`REPLY`) or why there is none (`REFUSED`)."""
        ...

    def is_idle(self) -> bool:
        """Nothing is being worked on: what a ping wants to know."""
        ...


class Progress(Protocol):
    """How far a run is; kinds have more to say. Its text is a note for people, `metrics` what was measured just now."""

    @property
    def num_done(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def metrics(self) -> dict[str, float]: ...


class Result(Protocol):
    """What there is to tell of a run that is finished, or was stopped."""

    @property
    def output(self) -> Path | None: ...

    @property
    def finished(self) -> bool: ...

    def as_dict(self) -> dict[str, Any]: ...


class ServerRun(Protocol):
    """The server's side of a run in one term. The shell calls, in this order:

    1. `load`, if there is a checkpoint; `enrol`: who takes part; then it tells that the run has started
    2. `begin`: all that comes before the first step (keys, checks, first measures); then it saves `state`
    3. `do` for each of `steps`, which are those that are left; it saves `state` between them
    4. `result`; and `close` in any case
    """

    @property
    def term(self) -> int:
        """How often the run was (re)started before."""
        ...

    @property
    def members(self) -> Sequence[str]: ...

    def load(self, state: Checkpoint) -> None: ...

    def enrol(self) -> None: ...

    def begin(self) -> None: ...

    def steps(self) -> Iterator[Any]: ...

    def do(self, step: Any) -> None: ...

    def progress(self) -> Progress: ...

    def state(self) -> Checkpoint: ...

    def result(self, output: Path | None) -> Result: ...

    def close(self) -> None: ...


@dataclass(frozen=True, repr=False)
class KitAround:
    """What is in the kit of a party of a deployment, for kinds that ask for it.

    `pinned`: the public identity keys of all sites. `identity`: a site's own. `key_file`: where it is. `runs`: the
    server's run directories. `counters`: what was counted, made with the kit. `code`: functions that the operator has
    allowed a plan to name.
    """

    folder: Path
    pinned: Mapping[str, bytes]
    identity: Identity | None = None
    key_file: Path | None = None
    runs: Path | None = None
    counters: Path | None = None
    code: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerAround:
    """What the server's side finds around itself. The last four are the shell's.

    `sites` None: every party is in this process. `make_secrets` gives the server's secrets of a term (its number and
    its members); None in a simulation that draws them from the plan's seed by itself. `options`: what was asked for
    besides the plan, by name; each kind says which it knows.
    """

    engine: str
    version: str
    sites: Sites | None = None
    make_secrets: Callable[[int, Sequence[str]], Secrets] | None = None
    data_dir: Path | None = None
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    kit: KitAround | None = None
    path: Path | None = None
    """The run directory, if it is there already."""
    tell: Callable[[Event], None] = lambda _: None
    keep: Callable[[], None] = lambda: None
    """Save `state` now, within a step or before the first."""
    note: Callable[[], None] = lambda: None
    """There is progress within a step."""
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class SiteAround:
    """What a site's side finds around itself.

    `make_secrets`: the site's secrets of a term, given the run id, the members and the term's number. `store`: the
    site's own directory for this run. `spent_file`: where it counts the rounds that a budget allows.
    """

    version: str
    make_secrets: Callable[[bytes, Sequence[str], int], Secrets] | None = None
    data_dir: Path | None = None
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    store: Path | None = None
    spent_file: Path | None = None
    kit: KitAround | None = None


@dataclass(frozen=True)
class Vocabulary:
    """Which messages travel in which direction: what a party is willing to decode."""

    to_site: tuple[type[Message], ...]
    to_server: tuple[type[Message], ...]


@dataclass(frozen=True)
class Outline:
    """What `bilateral watch` says of a plan. `unit`: what a step is called, `title`: for a directory.

    Seconds: `timeout`: how long a site may let the others wait, `patience`: how long a step may wait for sites,
    `longest_step`: how long a step may take without a word.
    """

    data: str
    model: str
    num_steps: int
    unit: str
    title: str
    timeout: float = 0.0
    patience: float = 0.0
    longest_step: float = 0.0
    is_open: bool = False
    """Sites may come at any time, before the first step is done too."""


class RunKind(Protocol[P]):
    """A kind of run. `command`: of the command line, which makes its plans and starts them.

    `deployable`: sites may be on machines of their own; others are for simulations only. `useful_when_stopped`: a run
    that was stopped has a result that is worth writing down, so that it takes at least one step before it stops.
    """

    name: str
    plan: type[P]
    command: str
    deployable: bool
    useful_when_stopped: bool

    @property
    def vocabulary(self) -> Vocabulary: ...

    def parse(self, values: dict[str, Any], source: str) -> P:
        """A plan from the values of a file or a job (without `kind`), or `PlanError`."""
        ...

    def dump(self, plan: P) -> str:
        """The plan as TOML, `kind` among it; a file without one is of kind `rounds`."""
        ...

    def outline(self, plan: P) -> Outline: ...

    def members(self, plan: P, data_dir: Path | None = None) -> tuple[str, ...]:
        """The names of all sites."""
        ...

    def guarantee(self, plan: P, data_dir: Path | None = None) -> Guarantee:
        """What the plan hides from whom, and what it does not."""
        ...

    def checkpoint_every(self, plan: P) -> int:
        """How many steps of a run in one process there are from checkpoint to checkpoint; elsewhere it is one."""
        ...

    def server(self, plan: P, around: ServerAround) -> ServerRun: ...

    def site(self, name: str, plan: P, around: SiteAround) -> SiteParty: ...


def register(kind: RunKind[Any]) -> None:
    """Add a kind from outside the package, in this process. Names of the table, and others' names, are not replaced."""
    if kind.name in _TABLE or kind.name in _added:
        raise PlanError(f"There is a kind of run {kind.name!r} already.", remedy="Give yours another name.")
    _added[kind.name] = kind


def make_known(kind: RunKind[Any]) -> None:
    """Register a kind that is not known in this process, as it was in the one that started it."""
    if kind.name not in kind_names():
        register(kind)


def unregister(name: str) -> None:
    """Take back what `register` added."""
    del _added[name]


def kind_names() -> tuple[str, ...]:
    return (*_TABLE, *_added)


def kind_named(name: object) -> RunKind[Any]:
    """A kind of the table, or one that was registered in this process."""
    if isinstance(name, str) and name in _added:
        return _added[name]
    if not isinstance(name, str) or name not in _TABLE:
        raise PlanError(f"There is no such kind of run; there are {', '.join(kind_names())}.")
    kind: RunKind[Any] = importlib.import_module(_TABLE[name]).KIND
    return kind


def kind_of_plan(plan: object) -> RunKind[Any]:
    """The kind whose plan this is."""
    for name in kind_names():
        kind = kind_named(name)
        if isinstance(plan, kind.plan):
            return kind
    raise PlanError(f"Expected the plan of a kind of run ({', '.join(kind_names())}), got {type(plan).__name__}.")


def kind_of(values: Mapping[str, Any]) -> RunKind[Any]:
    """Which kind a plan's values are of. Those of heterogeneous runs had no `kind` once, and sections of their own."""
    if "kind" in values:
        return kind_named(values["kind"])
    sections = {name for name, value in values.items() if isinstance(value, dict)}
    return kind_named(HETERO if sections & {"clients", "queries", "retraining"} else ROUNDS)


def has_own_command(path: Path) -> bool:
    """Is a plan file of a kind that a command was written for, as far as can be seen without opening more of it?

    Other kinds of the table, and those that were registered, are run by `bilateral run PLAN` as they are.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8")).get("kind", ROUNDS) in (ROUNDS, HETERO)
    except (ValueError, OSError, TypeError):
        return True


def parse_any(values: Mapping[str, Any], source: str) -> tuple[RunKind[Any], Any]:
    """A plan of whichever kind it says. `source`: the plan's path, or `of the job`."""
    kind = kind_of(values)
    return kind, kind.parse({name: value for name, value in values.items() if name != "kind"}, source)


def read_any(path: Path) -> tuple[RunKind[Any], Any]:
    """A plan of whichever kind, from a TOML file."""
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"There is no plan at {path}.", remedy="`--write-plan FILE` makes one.") from error
    except (ValueError, OSError) as error:
        raise PlanError(f"{path} is not a readable TOML file: {error}.") from error
    return parse_any(values, str(path))
