"""What a site lets a server, and so a job, name: a component of both parent processes, built from a kit's own settings.

FLARE trusts the server. A job's id becomes a directory of the site that is wiped when the job is deployed, and may be
the name of anything below FLARE's workspace; the server decides whether a command needs a right at all, so that one
whose operator is dishonest can print files of a site; `{$VARIABLE}` and the like in a job's settings are filled in at
the site. The gate stands before all of this:

- a site takes the commands in `COMMANDS`, which the server of this engine sends, and no others;
- a job's id is one that FLARE made (a UUID of version 4, in its usual form), in the command and in the job's meta;
- a job's application is what our recipes write (`job_content.check_app`): two JSON files, no references, no code;
- the server refuses a job whose `meta.json` brings an id of another form;
- commands come from the server and from nobody else (FLARE lets any participant send them), and who a message comes
  from is what the certificate of its connection says (`sender_check`).

Guarantee (tests/engine/flare/test_job_gate.py; live: test_job_names.py): nothing of a site outside the directory of a
job with such an id is deleted, written or told, whatever comes in from the server on FLARE's command channel.
"""

from __future__ import annotations

import re
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from bilateral.engine.flare.job_content import check_app
from bilateral.engine.flare.sender_check import guard_cells
from bilateral.errors import BilateralError, PlanError

COMMANDS: Final = frozenset(
    {
        TrainingTopic.CHECK_STATUS,
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.CANCEL_RESOURCE,
        TrainingTopic.DEPLOY,
        TrainingTopic.START_JOB,
        TrainingTopic.ABORT,
        TrainingTopic.NOTIFY_JOB_STATUS,
        TrainingTopic.SHUTDOWN,
        TrainingTopic.RESTART,
        SysCommandTopic.REPORT_VERSION,
    }
)
"""Start, watch and stop jobs; stop and restart the site. Nothing that reads, deletes or changes what is there."""
OF_A_JOB: Final = frozenset(
    {
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.DEPLOY,
        TrainingTopic.START_JOB,
        TrainingTopic.ABORT,
        TrainingTopic.NOTIFY_JOB_STATUS,
    }
)
"""Commands that must name a job."""
_JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_APP_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOT_TAKEN = "this site does not take that command."
NOT_AN_ID = "a job's id must be one that FLARE made: leave `job_id` out of meta.json."


def is_job_id(value: object) -> bool:
    """Is it of the form in which FLARE makes ids of jobs?"""
    return isinstance(value, str) and _JOB_ID.fullmatch(value) is not None


class JobGate(FLComponent):
    """Listed in `local/resources.json` of every kit. At a site it guards the commands, at the server new jobs."""

    def __init__(self) -> None:
        super().__init__()
        guard_commands()
        guard_cells()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """When the server is asked to take a new job."""
        if event_type == EventType.SUBMIT_JOB:
            self._check_new_job(fl_ctx)

    def _check_new_job(self, fl_ctx: Any) -> None:
        meta = fl_ctx.get_prop(FLContextKey.JOB_META)
        brought = meta.get(JobMetaKey.JOB_ID.value) if isinstance(meta, dict) else ""
        if brought is not None and not is_job_id(brought):
            fl_ctx.set_prop(FLContextKey.JOB_BLOCK_REASON, NOT_AN_ID, private=True, sticky=False)


def guard_commands() -> None:
    """Put a guard before every command that FLARE's client process will answer. It takes them from this one list."""
    known = ClientRequestProcessors.request_processors
    known[:] = [one if isinstance(one, GuardedCommand) else GuardedCommand(one) for one in known]


class GuardedCommand(RequestProcessor):
    """One of FLARE's processors, behind the checks. What is refused is told in fixed words: it is quoted nowhere."""

    def __init__(self, inner: RequestProcessor) -> None:
        self._inner = inner

    def get_topics(self) -> list[str]:
        return list(self._inner.get_topics())

    def process(self, req: Message, app_ctx: Any) -> Message:
        try:
            check_command(req)
        except BilateralError as error:
            return error_reply(str(error))
        return self._inner.process(req, app_ctx)


def check_command(request: Message) -> None:
    """Refuse what this engine's server does not send."""
    if request.topic not in COMMANDS:
        raise PlanError(NOT_TAKEN)
    job_id = request.get_header(RequestHeader.JOB_ID, None)
    if (job_id is not None or request.topic in OF_A_JOB) and not is_job_id(job_id):
        raise PlanError(NOT_AN_ID)
    meta = request.get_header(RequestHeader.JOB_META, None)
    if meta is not None:
        _require(isinstance(meta, dict), "the job's meta is malformed.")
        _require(meta.get(JobMetaKey.JOB_ID.value, job_id) == job_id, "the job's meta names another job.")
    if request.topic == TrainingTopic.DEPLOY:
        name = request.get_header(RequestHeader.APP_NAME, None)
        _require(isinstance(name, str) and _APP_NAME.fullmatch(name) is not None, "the application has no plain name.")
        check_app(request.body)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise PlanError(otherwise)
