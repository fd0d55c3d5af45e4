"""What all kinds of plans have in common: TOML files, dotted settings, and errors that name what is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from bilateral.arguments import checked
from bilateral.documents import parse_toml
from bilateral.errors import PlanError

_P = TypeVar("_P", bound=BaseModel)
_SETTINGS: Final = "Settings"
_NUM_MEANT: Final = 3


@dataclass(frozen=True)
class OtherKind:
    """Another kind of plan: what it is called, the sections that it alone has, and what to do with it."""

    called: str
    sections: frozenset[str]
    remedy: str


def validated(kind: type[_P], values: Mapping[str, Any], source: str) -> _P:
    """The plan, or an error that names every setting that is wrong. `source`: the plan's path, or `of the job`."""
    return _validated(kind, values, f"Plan {source}")


def _validated(kind: type[_P], values: Mapping[str, Any], beginning: str) -> _P:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        problems = "; ".join(_explain(problem, kind) for problem in found)
        unknown = [problem for problem in found if problem["type"] == "extra_forbidden"]
        strange = dict.fromkeys(tuple(map(str, one["loc"][:-1])) for one in unknown if not _hint(one, kind))
        remedy = " ".join(known_settings(kind, path) for path in strange)
        raise PlanError(f"{beginning}: {problems}.", remedy=remedy) from error


@checked
def with_settings(plan: _P, settings: Mapping[str, Any], optional: Collection[str] = ()) -> _P:
    """A copy with dotted settings replaced: `{"training.rounds": 10, "seed": 1}`.

    `optional`: sections that a plan may have and need not.
    """
    values = plan.model_dump()
    for dotted, value in settings.items():
        *path, last = dotted.split(".")
        section = values
        for part in path:
            if section is values and part in optional:
                section.setdefault(part, {})
            if not isinstance(section.get(part), dict):
                hint = _meant(part, section)
                remedy = "" if hint else known_settings(type(plan))
                raise PlanError(f"There is no plan section `{part}` in `{dotted}`.{hint}", remedy=remedy)
            section = section[part]
        section[last] = value
    return _validated(type(plan), values, _SETTINGS)


def read_plan(kind: type[_P], path: str | Path, command: str, other: OtherKind, name: str = "rounds") -> _P:
    """A plan from a TOML file; `command` is what writes one, `other` what it may be mistaken for.

    `name`: of the kind of run, which the file may say.
    """
    path = Path(path)
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"There is no plan at {path}.", remedy=f"`{command} --write-plan FILE` makes one.") from error
    except (ValueError, OSError) as error:
        raise PlanError(f"{path} is not a readable TOML file: {error}.") from error
    said = values.pop("kind", name)
    strange = [name for name, value in values.items() if name in other.sections and isinstance(value, dict)]
    if strange:
        sections = ", ".join(f"[{name}]" for name in strange)
        raise PlanError(f"{path} is a plan for {other.called} (it has {sections}).", remedy=other.remedy)
    if said != name:
        raise PlanError(f"{path} is a plan of kind {said!r}, not {name!r}.", remedy="`bilateral run` takes any kind.")
    return validated(kind, values, str(path))


def as_toml(plan: BaseModel) -> str:
    return tomli_w.dumps(plan.model_dump(mode="json", exclude_none=True))


def known_settings(kind: type[BaseModel], path: Sequence[str] = ()) -> str:
    """The settings of the section at `path`, or those outside of sections and all sections, as a remedy."""
    names = _names_at(kind, path)
    if path:
        return f"Settings of [{'.'.join(path)}]: {', '.join(names)}." if names else ""
    sections = _sections(kind)
    plain = [name for name in names if name not in sections]
    return f"Settings outside of sections: {', '.join(plain)}; sections: {', '.join(sections)}."


def _explain(problem: Any, kind: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if not where:  # about several settings at once
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"`{where}` is not a setting{_hint(problem, kind)}"
    said = str(problem["msg"]).removeprefix("Value error, ")
    return f"`{where}`: {said}, got {problem['input']!r}{_hint_of_value(problem)}"


def _hint_of_value(problem: Any) -> str:
    """Of a text where one of a few was expected, which pydantic lists in quotes."""
    given = problem["input"]
    if problem["type"] != "literal_error" or not isinstance(given, str):
        return ""
    close = difflib.get_close_matches(given.lower(), re.findall(r"'([^']+)'", problem["ctx"]["expected"]), n=1)
    return f" (Did you mean '{close[0]}'?)" if close else ""


def _hint(unknown: Any, kind: type[BaseModel]) -> str:
    """What may have been meant. A section is not told to be a setting."""
    *path, name = map(str, unknown["loc"])
    elsewhere = [f"{other}.{name}" for other, section in _sections(kind).items() if name in section.model_fields]
    here = _close(name, _sections(kind) if isinstance(unknown["input"], dict) else _names_at(kind, path))
    if elsewhere:
        return f" (Did you mean {' or '.join(f'`{one}`' for one in elsewhere[:_NUM_MEANT])}?)"
    return f" (Did you mean `{here}`?)" if here else ""


def _meant(name: str, known: Iterable[str]) -> str:
    close = _close(name, known)
    return f" Did you mean `{close}`?" if close else ""


def _close(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)), "")


def _sections(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    kinds = {name: field.annotation for name, field in kind.model_fields.items()}
    return {name: inner for name, inner in kinds.items() if isinstance(inner, type) and issubclass(inner, BaseModel)}


def _names_at(kind: Any, path: Sequence[str]) -> tuple[str, ...]:
    """The settings of the section at `path`."""
    for part in path:
        kind = kind.model_fields[part].annotation if part in getattr(kind, "model_fields", {}) else None
    return tuple(getattr(kind, "model_fields", ()))
