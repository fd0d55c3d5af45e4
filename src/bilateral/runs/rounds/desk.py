"""A site in one term of a run: it opens its own data, builds its client, and answers one packet at a time.

Nothing that a server sends can make it raise, and nothing about its data goes out but what the protocol says: errors
about its own data, settings or plan stay in its log, and the server hears only that there was one. When the server
itself is caught (`AuthenticationError`: other keys, lists or models than the others were shown), the site leaves the
term for good.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch

from bilateral.data import Task
from bilateral.engine.federation import (
    NUM_CALIBRATION_SAMPLES,
    Federation,
    load_site_share,
    member_names,
    needs_sample_counts,
    objective_of,
)
from bilateral.engine.kind import ENROLMENT
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.edge import SiteEdge, log, refusal
from bilateral.engine.setup import make_blueprints, reference_plan
from bilateral.errors import ProtocolError
from bilateral.learning.exchange import Party
from bilateral.learning.problem import Member, Problem, Share
from bilateral.learning.secrets import Secrets
from bilateral.protections.spoken_messages import to_client
from bilateral.protocols.noise.round_counter import RoundCounter
from bilateral.protocols.objective import Objective
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, digest, encode
from bilateral.runs.rounds.enrolment import BRIEF, INTRODUCE, Briefing, SiteCard

MAX_INPUT_SIZE = 1 << 26
"""Of one sample, as far as a party without data believes the server."""
MakeSecrets = Callable[[Briefing], Secrets]
"""The site's secrets for a term: drawn from the plan's seed in a simulation, from the operating system otherwise."""


class SiteDesk(SiteEdge):
    """One site, one term. Called from the transport's threads."""

    def __init__(
        self,
        name: str,
        plan: RunPlan,
        make_secrets: MakeSecrets,
        *,
        version: str,
        reference: bool = False,
        data_dir: Path | None = None,
        data_settings: Mapping[str, Any] | None = None,
        counter: RoundCounter | None = None,
    ) -> None:
        super().__init__(name)
        self._plan = plan
        self._make_secrets = make_secrets
        self._version = version
        self._reference = reference
        self._data_dir = data_dir
        self._data_settings = dict(data_settings or {})
        self._counter = counter
        self._share: Share | None = None
        self._has_data = name != plan.named_dealer
        self._clients: list[Party] = []
        self._newest = 0
        self._waiting = threading.Lock()

    def introduce(self) -> dict[str, Any]:
        """Open the site's data and say what it runs."""
        return self._answer(self._introduce)

    def brief(self, data: object) -> dict[str, Any]:
        """Take the facts of the term and build the client; the answer is the site's card again."""
        with self._at_work:
            return self._answer(lambda: self._brief(data))

    def deliver(self, lane: object, ticket: object, packet: object) -> dict[str, Any]:
        """A packet for the client of a lane (of several that wait, all but the newest are dropped), or to enrol."""
        if type(ticket) is not int or type(lane) is not int or not isinstance(packet, list | tuple):
            return refusal("the packet is malformed.")
        parts = [data for data in packet if isinstance(data, bytes)]
        if len(parts) != len(packet):
            return refusal("the packet is malformed.")
        if lane == ENROLMENT:
            return self._enrol(ticket, parts)
        with self._waiting:
            self._newest = max(self._newest, ticket)
        with self._at_work:
            if ticket < self._newest:
                return refusal("a later packet has arrived.")
            return self._answer(lambda: self._handle(lane, parts))

    def _enrol(self, number: int, packet: Sequence[bytes]) -> dict[str, Any]:
        if number == INTRODUCE and not packet:
            return self.introduce()
        if number == BRIEF and len(packet) == 1:
            return self.brief(packet[0])
        return refusal("the packet is malformed.")

    def _introduce(self) -> bytes:
        if self._share is None and self._has_data:
            self._share = load_site_share(self._plan, self.name, self._data_dir, self._data_settings)
            log.info("%s opened its data: %d samples", self.name, len(self._share))
        told = self._num_told(self._share)
        return encode(SiteCard(self._plan.digest(), self._version, told))

    def _brief(self, data: object) -> bytes:
        card = self._introduce()
        if not isinstance(data, bytes):
            raise ProtocolError("The briefing is not a message.")
        if self._clients or self._left:
            raise ProtocolError(f"{self.name} was briefed before; one briefing a term is taken.")
        briefing = decode(data, [Briefing], SERVER)
        federation = self._federation(briefing, self._share)
        plans = [self._plan]
        if self._reference and reference_plan(self._plan) != self._plan:
            plans.append(reference_plan(self._plan))
        secrets = self._make_secrets(briefing)
        secrets.bind(digest(briefing))  # whoever was told other facts has other keys, and no common masks
        blueprints = make_blueprints(plans, federation, secrets)
        if self._has_data:
            notes = (self._note, None)  # of the run's own model, not of the yardstick's
            self._clients = [
                blueprint.client(self.name, counter=self._counter, note=note)
                for blueprint, note in zip(blueprints, notes, strict=False)
            ]
        else:
            self._clients = [blueprints[0].helper(self.name)]
        log.info("%s takes part in term %d", self.name, briefing.term)
        return card

    def _note(self, row: dict[str, Any]) -> None:
        """Of models on samples that are kept back here: for this site's log, and nobody else."""
        log.info("%s measured: %s", self.name, ", ".join(f"{name} {value:.4g}" for name, value in row.items()))

    def _num_told(self, share: Share | None) -> int:
        return len(share) if share is not None and needs_sample_counts(self._plan) else 0

    def _federation(self, briefing: Briefing, share: Share | None) -> Federation:
        """The public facts, checked as far as the site can: its plan, its name, its own number of samples."""
        if briefing.plan_digest != self._plan.digest():
            raise ProtocolError(f"The server runs another plan than {self.name}.", remedy="Submit the job anew.")
        expected = member_names(self._plan, self._data_dir)
        if briefing.members != expected:
            raise ProtocolError(
                f"Expected the sites {', '.join(expected)} of the plan, the server named "
                f"{', '.join(briefing.members)[:500]}."
            )
        told = self._num_told(share) if self._has_data else None
        counts = dict(zip(briefing.members, briefing.num_samples, strict=False))
        if len(counts) != len(briefing.members) or len(counts) != len(briefing.num_samples):
            raise ProtocolError("The briefing names a site twice, or not every site's number of samples.")
        if counts.get(self.name) != told:
            raise ProtocolError(f"The briefing has another number of samples for {self.name} than it told.")
        task = cast("Task", briefing.task) if share is None else share.task
        if task not in get_args(Task):
            raise ProtocolError(f"The briefing names task {task!r}, which is not known here.")
        objective = objective_of(self._plan, task)
        if briefing.loss != objective.name:
            raise ProtocolError(f"The server says loss {briefing.loss!r}, which is not the plan's.")
        problem = _problem(briefing, share, self._plan, objective)
        if share is not None:
            problem.check_share(self.name, share)
        shares = {} if share is None else {self.name: share}
        return Federation(problem, tuple(Member(name, count) for name, count in counts.items()), shares)

    def _handle(self, lane: int, packet: Sequence[bytes]) -> bytes:
        self.check_in_term()
        if not 0 <= lane < len(self._clients):
            raise ProtocolError(f"{self.name} was not briefed for training {lane}.")
        messages = [decode(data, to_client(), SERVER) for data in packet]
        return encode(self._clients[lane].handle(messages))


def _problem(briefing: Briefing, share: Share | None, plan: RunPlan, objective: Objective) -> Problem:
    """What is learned, as the server says; a party without data has nothing to hold it against."""
    shape = tuple(briefing.input_shape)
    if briefing.task != objective.task:
        raise ProtocolError(f"The briefing names task {briefing.task!r}, the site's data are for {objective.task!r}.")
    fits = bool(shape) and min(shape) >= 1 if share is not None else _is_shape(shape)
    if not fits or briefing.num_outputs < 1 or briefing.term_scales.dim() != 1:
        raise ProtocolError("The briefing's sizes do not fit the site's data.")
    own = shape if share is None else share.sample_shape  # as large as what is here, whatever the server says
    return Problem(
        briefing.dataset,
        objective.task,
        shape,
        briefing.num_outputs,
        objective,
        # For tracing; the server's own inputs stay there.
        torch.zeros(NUM_CALIBRATION_SAMPLES, *own, dtype=_input_dtype(briefing.input_dtype, plan)),
        briefing.class_names,
        briefing.columns,
        term_scales=tuple(briefing.term_scales.tolist()),
        form=None if share is None else share.form,
        told_inputs=briefing.inputs,
    )


def _input_dtype(told: str, plan: RunPlan) -> torch.dtype:
    """Whole numbers, or the plan's precision; there is no other."""
    dtype = torch.int64 if told == "int64" else getattr(torch, plan.training.dtype)
    assert isinstance(dtype, torch.dtype)
    if told != str(dtype).removeprefix("torch."):
        raise ProtocolError(f"The briefing names inputs of {told[:40]!r}, which this plan does not have.")
    return dtype


def _is_shape(shape: tuple[int, ...]) -> bool:
    return bool(shape) and all(size >= 1 for size in shape) and math.prod(shape) <= MAX_INPUT_SIZE
