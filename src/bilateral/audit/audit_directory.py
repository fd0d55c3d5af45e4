"""An audit's directory: raw evidence as it comes in, so that nothing is lost on interruption; then `audit.json`.

`plan.json` says what is audited and how hard; `evidence/NAME.json` is one finished experiment; pictures and pages are
put beside them by whoever makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bilateral.audit.evidence import MALFORMED, Evidence, evidence_from
from bilateral.documents import parse_json
from bilateral.engine.run_directory import new_dated_folder, write_json
from bilateral.errors import CheckpointError, PlanError

DEFAULT_PARENT = Path("bilateral-audits")
_DELETE = "Delete it; that part is then done again."


class AuditDirectory:
    """Files of one audit. Never overwrites another's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def result(self) -> Path:
        return self.path / "audit.json"

    @property
    def pictures(self) -> Path:
        return self.path / "pictures"

    @staticmethod
    def create(path: Path | None, title: str, task: dict[str, Any]) -> AuditDirectory:
        """A new directory for `task` (the plan and the effort)."""
        path = path or new_dated_folder(DEFAULT_PARENT, title)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise PlanError(
                f"{path} already exists and is not empty.",
                remedy="Choose another --output, or go on with a stopped audit by --resume.",
            )
        (path / "evidence").mkdir(parents=True)
        write_json(path / "plan.json", task)
        return AuditDirectory(path)

    @staticmethod
    def open(path: Path) -> AuditDirectory:
        if not (path / "plan.json").exists():
            raise CheckpointError(f"{path} is not an audit's directory (no plan.json).", remedy="Name its --output.")
        return AuditDirectory(path)

    def task(self) -> dict[str, Any]:
        return _read(self.path / "plan.json")

    def write_evidence(self, name: str, evidence: Sequence[Evidence], seconds: float) -> None:
        """One finished experiment."""
        values = {"seconds": seconds, "evidence": [one.as_dict() for one in evidence]}
        write_json(self.path / "evidence" / f"{name}.json", values, indent=None)

    def finished(self) -> dict[str, tuple[tuple[Evidence, ...], float]]:
        """All experiments that are done: name to (evidence, seconds)."""
        found = {}
        for path in sorted((self.path / "evidence").glob("*.json")):
            values = _read(path)
            try:
                evidence = tuple(evidence_from(one) for one in values["evidence"])
                found[path.stem] = (evidence, float(values["seconds"]))
            except MALFORMED as error:
                raise CheckpointError(
                    f"{path} is no finished experiment: {type(error).__name__}: {str(error)[:500]}.", remedy=_DELETE
                ) from error
        return found


def _read(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {str(error)[:500]}.", remedy=_DELETE) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: expected one JSON object.", remedy=_DELETE)
    return values
