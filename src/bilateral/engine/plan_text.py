"""What all kinds of plans have in common: TOML files, dotted settings, and errors that name what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from bilateral.arguments import checked
from bilateral.documents import parse_toml
from bilateral.errors import PlanError

_P = TypeVar("_P", bound=BaseModel)


def validated(kind: type[_P], values: Mapping[str, Any], source: str) -> _P:
    """The plan, or an error that names every setting that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_explain(problem, kind) for problem in error.errors())
        raise PlanError(f"Plan {source}: {problems}.", remedy=known_settings(kind)) from error


@checked
def with_settings(plan: _P, settings: Mapping[str, Any]) -> _P:
    """A copy with dotted settings replaced: `{"training.rounds": 10, "seed": 1}`."""
    values = plan.model_dump()
    for dotted, value in settings.items():
        *path, last = dotted.split(".")
        section = values
        for part in path:
            if not isinstance(section.get(part), dict):
                hint, remedy = _meant(part, section), known_settings(type(plan))
                raise PlanError(f"There is no plan section `{part}` in `{dotted}`.{hint}", remedy=remedy)
            section = section[part]
        section[last] = value
    return validated(type(plan), values, "the settings")


def read_plan(kind: type[_P], path: str | Path, command: str) -> _P:
    """A plan from a TOML file; `command` is what writes one."""
    path = Path(path)
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"There is no plan at {path}.", remedy=f"`{command} --write-plan FILE` makes one.") from error
    except (ValueError, OSError) as error:
        raise PlanError(f"{path} is not a readable TOML file: {error}.") from error
    return validated(kind, values, str(path))


def as_toml(plan: BaseModel) -> str:
    return tomli_w.dumps(plan.model_dump(mode="json", exclude_none=True))


def known_settings(kind: type[BaseModel]) -> str:
    """All settings of a kind of plan, as a remedy."""
    plain, sections = [], []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            sections.append(f"[{name}] {', '.join(inner.model_fields)}")
        else:
            plain.append(name)
    return f"Settings: {', '.join([*plain, *sections])}."


def _explain(problem: Any, kind: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if not where:  # about several settings at once
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        *path, last = map(str, problem["loc"])
        return f"`{where}` is not a setting{_hint(last, kind, path)}"
    return f"`{where}`: {problem['msg']}, got {problem['input']!r}"


def _hint(name: str, kind: type[BaseModel], path: Sequence[str]) -> str:
    meant = _meant(name, _names_at(kind, path))
    return f" ({meant.strip()})" if meant else ""


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def _names_at(kind: Any, path: Sequence[str]) -> Iterable[str]:
    """The settings of the section at `path`."""
    for part in path:
        kind = kind.model_fields[part].annotation if part in getattr(kind, "model_fields", {}) else None
    return getattr(kind, "model_fields", ())
