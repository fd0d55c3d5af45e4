"""What to type to make a stored audit again."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pydantic import BaseModel

from bilateral.audit.auditor import AuditResult
from bilateral.engine.plan import RunPlan
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE
from bilateral.report.frame import flat
from bilateral.runs.hetero.plan import HeteroPlan


def command_for(result: AuditResult, output: str) -> str:
    """What to type for the same audit: all settings that are not the default's."""
    is_run = _is_one_of(result, RunPlan)
    if not is_run and not _is_one_of(result, HeteroPlan):
        return f"bilateral audit plan.toml --output {output}"  # of a kind that was registered: it has no settings here
    default = dict(flat((RunPlan() if is_run else HeteroPlan()).model_dump(mode="json")))
    changed = [
        (key, value)
        for key, value in flat(result.plan)
        if value != default.get(key) and value is not None and not _is_no_more(key, default)
    ]
    words = [f"--set {shlex.quote(f'{key}={_setting(value)}')}" for key, value in changed]
    effort = [] if result.effort == "standard" else [f"--effort {result.effort}"]
    style = [] if result.style == result.plan.get("style", DEFAULT_STYLE.name) else [f"--style {result.style}"]
    kind_of_plan = [] if is_run else ["--hetero", *style]
    only = [f"--only {name}" for name in result.only]
    return " ".join(["bilateral audit", *kind_of_plan, *words, *effort, *only, f"--output {output}"])


def _is_one_of(result: AuditResult, plan: type[BaseModel]) -> bool:
    """Whether most of the kind's settings are there: it may have got more since, and protections have their own."""
    sections = set(plan().model_dump())
    return 2 * len(sections & set(result.plan)) > len(sections)


def _is_no_more(key: str, default: dict[str, Any]) -> bool:
    """A setting of ours that plans do not have any more; sections of others, and free options, have any."""
    parts = key.split(".")
    known = any(".".join(parts[:length]) in default for length in range(1, len(parts) + 1))
    return not known and any(name.startswith(f"{parts[0]}.") for name in default)


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)  # numbers, truth and lists are the same in TOML
