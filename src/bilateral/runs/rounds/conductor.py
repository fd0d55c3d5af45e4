"""The server in one term of a run: enrols the sites that are there, then drives the round loop over them.

A run is a directory; a term is one life of the server's process in it. Every round is in the checkpoint before the next
begins, so that the next term goes on with no round lost or applied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bilateral.documents import parse_json
from bilateral.engine.checkpoint import Checkpoint, putting_back
from bilateral.engine.events import MAX_REASON, MessageRefused, SiteMissed
from bilateral.engine.federation import Federation, load_server_view, needs_sample_counts
from bilateral.engine.kind import ENROLMENT, Sites
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.edge import REFUSED, REPLY, SiteSilentError
from bilateral.engine.run_directory import RunDirectory, write_json
from bilateral.engine.setup import Blueprint, make_blueprints, reference_plan
from bilateral.engine.transcript import Transcript
from bilateral.errors import CheckpointError, ProtocolError, SitesMissingError
from bilateral.learning.secrets import Secrets
from bilateral.protocols.wire import decode, digest, encode
from bilateral.runs.rounds.attendance import Attendance
from bilateral.runs.rounds.enrolment import BRIEF, INTRODUCE, Briefing, SiteCard
from bilateral.runs.rounds.in_process import has_reference, no_record
from bilateral.runs.rounds.loop import Lane, RoundLoop
from bilateral.runs.rounds.remote_exchange import RemoteExchange, Tickets, Timing
from bilateral.runs.rounds.result import RoundReport, RunResult

MAX_SAMPLES = 10**9
MakeSecrets = Callable[[int, Sequence[str]], Secrets]
"""The server's secrets for a term, given its number and the members."""


@dataclass
class Conductor:
    """What the server's side of one term is built from (`RoundsOverSites`): the sites, and what it was asked for."""

    plan: RunPlan
    sites: Sites
    make_secrets: MakeSecrets
    version: str
    reference: bool = False
    data_dir: Path | None = None
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    should_stop: Callable[[], bool] = lambda: False
    on_exchange: Callable[[Timing], None] = lambda _: None

    def _prepare(
        self, directory: RunDirectory, pool: ThreadPoolExecutor, checkpoint: Checkpoint | None
    ) -> tuple[RoundLoop, Attendance]:
        """Enrol the sites and build the server's side."""
        term = 0 if checkpoint is None else int(checkpoint.counters["term"]) + 1
        enrolment = _Enrolment(self, directory, pool)
        federation = enrolment.federation()
        names = federation.names
        helpers = self.plan.parties(())
        secrets = self.make_secrets(term, self.plan.parties(names))
        blueprints = make_blueprints(self._plans(checkpoint), federation, secrets)
        enrolled = enrolment.brief(blueprints[0], secrets, term)  # and binds the secrets, before any is used
        enrolment.check_enough(enrolled, sites_needed(self.plan, len(names)), helpers)
        attendance = Attendance(
            enrolled,
            self.sites.ping,
            directory.tell,
            sites_needed(self.plan, len(names)),
            self.plan.federation.patience,
            self.should_stop,
            all_invited=self.plan.masks(len(names)) == "float",
            always=helpers,
        )
        transcript = Transcript()
        way = partial(
            RemoteExchange,
            call=self.sites.call,
            ping=self.sites.ping,
            attendance=attendance,
            pool=pool,
            tickets=Tickets(),
            timeout=self.plan.federation.timeout,
            on_exchange=self.on_exchange,
        )
        lanes = [
            Lane(blueprint.server(), way(lane=number, record=no_record if number else transcript.record))
            for number, blueprint in enumerate(blueprints)
        ]
        loop = RoundLoop(
            self.plan,
            names,
            federation.test_data,
            federation.problem.objective,
            lanes[0],
            lanes[1] if len(lanes) > 1 else None,
            directory,
            transcript,
            gather=attendance.gather,
            on_contributors=attendance.contributed,
            on_close=attendance.close,
            validation=federation.validation,
            class_names=federation.problem.class_names,
        )
        return loop, attendance

    def _plans(self, checkpoint: Checkpoint | None) -> list[RunPlan]:
        """The plan, and FedSGD beside it if that was asked for when the run began."""
        wanted = self.reference
        if checkpoint is not None:
            wanted = has_reference(checkpoint)
        bare = reference_plan(self.plan)
        return [self.plan, bare] if wanted and bare != self.plan else [self.plan]


class RoundsOverSites:
    """A `ServerRun`: the loop of a conductor, which can be built only when the sites are enrolled."""

    def __init__(self, conductor: Conductor, directory: RunDirectory) -> None:
        self._conductor, self._directory = conductor, directory
        self._state: Checkpoint | None = None
        self._built: RoundLoop | None = None
        # A conversation and a call a site, and calls to dead sites that have not timed out yet.
        workers = 8 * max(len(conductor.sites.names()), 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="site")

    @property
    def term(self) -> int:
        return self._loop.term

    @property
    def members(self) -> tuple[str, ...]:
        return self._loop.members

    def load(self, state: Checkpoint) -> None:
        self._state = state

    def enrol(self) -> None:
        loop, _ = self._conductor._prepare(self._directory, self._pool, self._state)
        self._built = loop
        if self._state is not None:
            with putting_back(self._directory.checkpoint):
                loop.load(self._state)

    def begin(self) -> None:
        self._loop.begin()

    def steps(self) -> Iterator[int]:
        return self._loop.steps()

    def do(self, step: int) -> None:
        self._loop.do(step)

    def progress(self) -> RoundReport:
        if self._built is None:
            done = 0 if self._state is None else self._state.next_round
            return RoundReport(done, self._conductor.plan.training.rounds, {}, None)
        return self._built.progress()

    def state(self) -> Checkpoint:
        return self._loop.state()

    def result(self, output: Path | None) -> RunResult:
        return self._loop.result(output)

    def close(self) -> None:
        """The end does not wait for calls to dead sites."""
        if self._built is not None:
            self._built.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _loop(self) -> RoundLoop:
        assert self._built is not None, "enrolled first"
        return self._built


@dataclass
class _Enrolment:
    """Who takes part in a term, and the facts that they are told."""

    conductor: Conductor
    directory: RunDirectory
    pool: ThreadPoolExecutor
    _cards: dict[str, SiteCard] = field(default_factory=dict)
    _new_counts: dict[str, int] | None = None
    _troubles: dict[str, str] = field(default_factory=dict)

    def federation(self) -> Federation:
        """The server's own view, with the members' sample counts where the plan needs them."""
        around = self.conductor
        view = load_server_view(around.plan, around.data_dir, around.data_settings)
        parties = around.plan.parties(view.names)
        unknown = sorted(set(around.sites.names()) - set(parties))
        for name in unknown:
            self.directory.tell(MessageRefused(name, 0, f"{name} is not a site of this plan."))
        present = [name for name in parties if name in around.sites.names()]
        self._cards = self._ask(
            present, lambda site: around.sites.call(site, ENROLMENT, INTRODUCE, [], around.plan.federation.timeout)
        )
        counts = self._sample_counts(view.names) if needs_sample_counts(around.plan) else dict.fromkeys(view.names, 0)
        return view.with_members(counts)

    def brief(self, blueprint: Blueprint, secrets: Secrets, term: int) -> list[str]:
        """Tell every site the facts; returns those that are ready."""
        around, federation = self.conductor, blueprint.federation
        problem = federation.problem
        facts = Briefing(
            around.plan.digest(),
            secrets.run_id,
            term,
            tuple(member.name for member in federation.members),
            tuple(member.num_samples for member in federation.members),
            problem.dataset,
            problem.task,
            tuple(problem.input_shape),
            problem.num_outputs,
            problem.loss,
            problem.class_names,
            problem.columns,
            problem.input_dtype,
            problem.schema.inputs,
            torch.tensor(blueprint.term_scales, dtype=torch.float64),
        )
        briefing = encode(facts)
        secrets.bind(digest(facts))
        if self._new_counts is not None:  # everything could be built from them: they are the run's
            write_json(self._counts_file, self._new_counts)
        timeout = around.plan.federation.timeout
        return list(
            self._ask(list(self._cards), lambda site: around.sites.call(site, ENROLMENT, BRIEF, [briefing], timeout))
        )

    @property
    def _counts_file(self) -> Path:
        return self.directory.path / "members.json"

    def check_enough(self, enrolled: Sequence[str], needed: int, helpers: Sequence[str] = ()) -> None:
        """Whoever is not enrolled joins with the next term at the earliest, so waiting in this one is in vain."""
        reasons = "; ".join(f"{site}: {reason}" for site, reason in self._troubles.items())
        remedy = "Bring the sites back, or see to what they refuse; then resume."
        if missing := [name for name in helpers if name not in enrolled]:
            raise SitesMissingError(f"{missing[0]}, who deals, is not ready. {reasons}".strip(), remedy=remedy)
        num_ready = len(enrolled) - len(helpers)
        if num_ready < needed:
            raise SitesMissingError(
                f"{num_ready} sites are ready, {needed} are needed. {reasons}".strip(), remedy=remedy
            )

    def _sample_counts(self, names: Sequence[str]) -> dict[str, int]:
        """Every member's, told in the first term and kept since: what a run spends must not depend on who is there."""
        if self._counts_file.exists():
            return _read_counts(self._counts_file, names)
        if missing := [name for name in names if name not in self._cards]:
            raise SitesMissingError(
                f"This plan's accounting needs every site's number of samples; {', '.join(missing)} told none.",
                remedy="Start the run when all its sites are there; later they may come and go.",
            )
        counts = {name: self._cards[name].num_samples for name in names}
        self._new_counts = counts
        return counts

    def _ask(self, sites: Sequence[str], ask: Callable[[str], Mapping[str, Any]]) -> dict[str, SiteCard]:
        """The cards of those that answer as they should, in order; the others are told of."""
        futures = {site: self.pool.submit(ask, site) for site in sites}
        cards: dict[str, SiteCard] = {}
        for site, future in futures.items():
            try:
                cards[site] = self._card(site, future.result())
            except SiteSilentError as error:
                self._troubles[site] = str(error)[:MAX_REASON]
                self.directory.tell(SiteMissed(site, 0, "enrolment", self._troubles[site]))
            except ProtocolError as error:
                self._troubles[site] = str(error)[:MAX_REASON]
                self.directory.tell(MessageRefused(site, 0, self._troubles[site]))
        return cards

    def _card(self, site: str, answer: Mapping[str, Any]) -> SiteCard:
        if not isinstance(answer, Mapping) or not isinstance(data := answer.get(REPLY), bytes):
            reason = answer.get(REFUSED) if isinstance(answer, Mapping) else None
            raise ProtocolError(f"{site} cannot take part: {reason if isinstance(reason, str) else 'no card'}")
        card = decode(data, [SiteCard], site)
        around = self.conductor
        if card.plan_digest != around.plan.digest():
            raise ProtocolError(f"{site} runs another plan than the server.", remedy="Submit the job anew.")
        if card.version != around.version:
            raise ProtocolError(
                f"{site} runs bilateral {card.version}, the server {around.version}.",
                remedy="Install the same version.",
            )
        tells = needs_sample_counts(around.plan) and site != around.plan.named_dealer
        if tells != (card.num_samples > 0) or card.num_samples > MAX_SAMPLES:
            raise ProtocolError(f"{site} told {card.num_samples} samples, which does not fit the plan.")
        return card


def _read_counts(path: Path, names: Sequence[str]) -> dict[str, int]:
    """What was told in the first term."""
    try:
        counts = parse_json(path.read_bytes())
        found = {name: int(counts[name]) for name in names}
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{path} does not say how many samples each site has: {type(error).__name__}.",
            remedy="The accounting of this run rests on it: restore it, or start a new run.",
        ) from error
    return found


def sites_needed(plan: RunPlan, num_members: int) -> int:
    """How many sites a round takes to start: what the plan says, and at least what its sum needs."""
    invited = plan.federation.num_participants(num_members)
    masks = plan.masks(num_members)
    if masks == "float" or plan.traits.needs_full_sum:
        return invited  # noise that cancels in a full sum only
    least = max(2, plan.aggregation.settings().threshold_of(invited)) if masks == "ring" else 1
    return min(max(least, plan.federation.min_sites or 1), invited)
