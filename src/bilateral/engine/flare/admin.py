"""The administrator's side of a deployment: submit jobs, see how they fare, who is connected; nothing else.

A thin layer over FLARE's admin session: quiet, with our errors, and it connects anew if the server was restarted.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    JobNotDone,
    JobNotRunning,
    NoConnection,
    SessionClosed,
    SessionExpired,
    TargetType,
)
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.proto import MetaStatusValue

from bilateral.documents import parse_json
from bilateral.engine.flare.coordinator import OUTCOME_FILE
from bilateral.errors import DeploymentError

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)
# What FLARE logs of lost connections comes back as an error here; without a handler Python would also print it.
logging.getLogger("nvflare").addHandler(logging.NullHandler())
_LOST_SESSION = (NoConnection, SessionClosed, SessionExpired, AuthenticationError)


class ServerAwayError(DeploymentError):
    """The server does not answer. It may only be restarting: whoever has time asks again."""


class JobState(Enum):
    """How far a job is. `FAILED`: it ended, but not as it should; FLARE's text says more."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class JobStatus:
    """The state of a job, and FLARE's word for it."""

    state: JobState
    text: str

    @property
    def has_ended(self) -> bool:
        return self.state in (JobState.FINISHED, JobState.FAILED)

    @classmethod
    def of(cls, text: str) -> JobStatus:
        """The state that a status of FLARE means."""
        if text in ("SUBMITTED", "APPROVED", "DISPATCHED"):
            return cls(JobState.SUBMITTED, text)
        if text == "RUNNING":
            return cls(JobState.RUNNING, text)
        return cls(JobState.FINISHED if text == "FINISHED:COMPLETED" else JobState.FAILED, text)


class Admin:
    """A session with the server of a deployment, opened at the first question. `kit`: the administrator's kit."""

    def __init__(self, kit: Path, timeout: float = 10.0) -> None:
        self._kit = Path(kit)
        self._timeout = timeout
        self._session: Session | None = None
        config = self._kit / "startup" / "fed_admin.json"
        try:
            admin = parse_json(config.read_bytes())["admin"]
            self._user = str(admin["username"] or self._kit.name)
            self._server = f"{admin['host']}:{admin['port']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DeploymentError(f"{self._kit} is not an administrator's kit: {error}.") from error

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, job: Path, token: str | None = None) -> str:
        """Hand a job directory to the server; its id. Asked twice because of a lost connection, it submits once.

        The same `token` again gives the job of the first time: for a caller that asks again after an error.
        """
        token = token or uuid.uuid4().hex
        return str(self._ask("take a job", lambda session: session.submit_job(str(job), submit_token=token)))

    def status(self, job_id: str) -> JobStatus:
        """How far a job is. One that ran when the server was killed has failed, though FLARE calls it running for ever.

        FLARE's word for the end of a job is no proof: a job that did all its work is called abnormal if a site died in
        it and came back. Whether a run is finished stands in its run directory.
        """

        def ask(session: Session) -> JobStatus:
            meta = session.get_job_meta(job_id)
            status = JobStatus.of(str(meta["status"]))
            if status.text not in ("RUNNING", "DISPATCHED"):
                return status
            started = float(session.get_system_info().server_info.start_time)
            return JobStatus(JobState.FAILED, "LOST") if _last_sign(meta) < started else status

        return self._ask("tell the status of a job", ask)

    def connected_sites(self) -> tuple[str, ...]:
        """Sites that are registered and have been heard of lately. A dead one is among them until its time is up."""
        clients = self._ask("name the connected sites", lambda session: session.get_connected_client_list())
        return tuple(sorted(str(client.name) for client in clients))

    def sites_running(self, job_id: str) -> dict[str, bool]:
        """Whether a connected site has a process for this job, by its own word. Waits for dead ones a while: they are
        not among the answers, nor is one that is cut off."""
        jobs = self._ask("ask the sites for their jobs", lambda session: session.get_client_job_status())
        found: dict[str, bool] = {}
        for job in jobs or ():
            site = str(job["client_name"])
            if job.get("status") not in (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR):
                found[site] = found.get(site, False) or job.get("job_id") == job_id
        return found

    def jobs(self, name: str) -> dict[str, JobStatus]:
        """The jobs of this name, newest first, with FLARE's word about each (see `status`, which knows better)."""
        jobs = self._ask("list its jobs", lambda session: session.list_jobs(name_prefix=name, reverse=True))
        return {str(job["job_id"]): JobStatus.of(str(job["status"])) for job in jobs if job["job_name"] == name}

    def outcome(self, job_id: str) -> dict[str, Any] | None:
        """What an ended job left for its administrator (`OUTCOME_FILE`); None if it was killed before it could."""
        with tempfile.TemporaryDirectory(prefix="bilateral-outcome-") as folder:

            def download(session: Session) -> Path | None:
                try:
                    return Path(session.download_job_result(job_id, folder))
                except JobNotDone:
                    return None  # it will never be, if the server was killed

            found = self._ask("hand out the outcome of a job", download)
            files = [] if found is None else sorted(found.rglob(OUTCOME_FILE))
            if not files:
                return None
            try:
                values = parse_json(files[0].read_bytes())
            except (OSError, ValueError) as error:
                raise DeploymentError(f"The outcome of job {job_id} cannot be read: {error}.") from error
        return dict(values) if isinstance(values, dict) else None

    def command(self, job_id: str, topic: str, data: dict[str, Any]) -> dict[str, Any]:
        """Ask the server's part of a running job something; its answer."""
        answer = self._ask(f"pass on {topic!r}", lambda session: session.do_app_command(job_id, topic, data))
        return dict(answer or {})

    def abort(self, job_id: str) -> None:
        """Stop a job where it stands. A job that has ended is left alone."""

        def stop(session: Session) -> None:
            try:
                session.abort_job(job_id)
            except JobNotRunning:
                return

        self._ask("abort a job", stop)

    def shutdown(self) -> None:
        """Ask all sites and the server to end."""
        self._ask("shut down", lambda session: session.shutdown(TargetType.ALL, wait=False))
        self.close()

    def close(self) -> None:
        """Log out. The next question opens a new session."""
        session, self._session = self._session, None
        if session is not None:
            _close(session)

    def _ask(self, what: str, question: Callable[[Session], Answer]) -> Answer:
        """Ask, and once more in a new session if the old one turns out to be lost."""
        fresh = self._session is None
        try:
            try:
                return question(self._open())
            except _LOST_SESSION:
                self.close()
                if fresh:
                    raise
                return question(self._open())
        except (NoConnection, SessionClosed, SessionExpired, FLCommunicationError) as error:
            raise ServerAwayError(
                f"There is no connection to the FLARE server at {self._server}.", remedy="Is it running? See its log."
            ) from error
        except Exception as error:  # FLARE's errors have no common base
            raise DeploymentError(
                f"The FLARE server at {self._server} did not {what}: {type(error).__name__}: {error}."
            ) from error

    def _open(self) -> Session:
        if self._session is None:
            session = Session(self._user, str(self._kit))
            session.api._print_hci = _log.debug  # it would print to standard output
            session.api.auto_login_max_tries = 1
            session.api.authenticate_msg_timeout = self._timeout  # a busy server takes longer than FLARE's 5 seconds
            try:
                session.try_connect(self._timeout)
            except BaseException:
                _close(session)
                raise
            self._session = session
        return self._session


def _last_sign(meta: dict[str, Any]) -> float:
    """When a server last did something about a job: a job that was only submitted to a dead server lives on."""
    if meta.get("start_time"):
        return datetime.fromisoformat(str(meta["start_time"])).timestamp()
    return max(float(meta["submit_time"]), float(meta.get("last_schedule_time") or 0.0))


def _close(session: Session) -> None:
    try:
        session.close()
    except Exception as error:  # the server may be gone, and then there is nobody to log out from
        _log.debug("not logged out: %s", error)
