"""Write what the command has as data: the schemas of what it prints with `--json`, and what the shell completes.

python tools/write_package_data.py src/bilateral/cli
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from bilateral.audit.effort import EffortName
from bilateral.audit.topics.registry import all_experiments
from bilateral.bench import BENCHMARKS
from bilateral.cli.lazy_commands import imported
from bilateral.cli.main import app
from bilateral.cli.printed import PRINTED, schema_of
from bilateral.data.registry import dataset_names
from bilateral.engine.plan import RunPlan
from bilateral.learning.hetero.settings import PoolName, SelectionName
from bilateral.models.zoo import model_names
from bilateral.protections.ladder import LADDER
from bilateral.protections.registry import baseline_names, mechanism_names, own_sections, protection_words, word_of
from bilateral.protocols.objective import LossName
from bilateral.protocols.share.gates.styles import StyleName
from bilateral.protocols.share.serving.terms import Reveal
from bilateral.report.tracking import TRACKERS
from bilateral.reproduce.registry import tables
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.rounds.compare import lanes

_ENGINES: Final = ("in-process", "flare-sim", "flare-poc")
_KINDS: Final = {
    "--data": "datasets",
    "--model": "models",
    "--models": "models",
    "--loss": "losses",
    "--protection": "protections",
    "--set": "settings",
    "--masks": "masks",
    "--mechanism": "mechanisms",
    "--noise": "noises",
    "--engine": "engines",
    "--style": "styles",
    "--effort": "efforts",
    "--reveal": "reveals",
    "--track": "trackers",
    "--device": "devices",
    "--pool": "pools",
    "--selection": "selections",
    "--answers": "answers",
    "--only": "experiments",
    "--norm-inputs": "norm-inputs",
}
"""What an option of this name takes, in every command,"""
_ELSEWHERE: Final = {
    ("hetero", "--set"): "hetero-settings",
    ("compare", "--protection"): "lanes",
    ("inspect", "model"): "models",
    ("bench", "name"): "benchmarks",
    ("reproduce", "table"): "tables",
    ("bench", "--model"): None,
    ("bench", "--data"): None,
    ("serve", "--engine"): "serving-engines",
    ("schema", "command"): "commands",
}
"""and where it, or an argument, takes something else."""


def write_package_data(folder: Path) -> None:
    """Schemas, a file a command (that of a command that is gone is taken away), and `completions.json`."""
    schemas = folder / "schemas"
    schemas.mkdir(parents=True, exist_ok=True)
    for path in schemas.glob("*.json"):
        if path.stem not in PRINTED:
            path.unlink()
    for command in PRINTED:
        (schemas / f"{command}.json").write_text(schema_text(command), encoding="utf-8")
    (folder / "completions.json").write_text(completions_text(), encoding="utf-8")


def schema_text(command: str) -> str:
    return json.dumps(schema_of(command), indent=1) + "\n"


def completions_text() -> str:
    commands = {name: [_parameter(name, one) for one in command.params] for name, command in imported(app).items()}
    return json.dumps({"commands": commands, "values": _values()}, indent=0, ensure_ascii=False) + "\n"


def _parameter(command: str, one: Any) -> dict[str, Any]:
    is_option = one.param_type_name == "option"
    options = [*one.opts, *([f"{one.opts[0]}/{one.secondary_opts[0]}"] if one.secondary_opts else [])]
    if one.secondary_opts:
        options = options[1:]
    return {
        "name": one.name,
        "options": options if is_option else [],
        "flag": bool(getattr(one, "is_flag", False)),
        "multiple": bool(getattr(one, "multiple", False) or one.nargs == -1),
        "path": "path" in str(getattr(one, "type_descriptor", getattr(one, "type", ""))).lower(),
        "values": _kind(command, one.opts if is_option else [one.name]),
        "help": " ".join((getattr(one, "help", "") or "").split()),
    }


def _kind(command: str, names: Sequence[str]) -> str | None:
    for name in names:
        if (command, name) in _ELSEWHERE:
            return _ELSEWHERE[command, name]
    return next((_KINDS[name] for name in names if name in _KINDS), None)


def _values() -> dict[str, list[tuple[str, str]]]:
    literals = {
        "styles": StyleName,
        "efforts": EffortName,
        "reveals": Reveal,
        "pools": PoolName,
        "selections": SelectionName,
    }
    words: dict[str, Sequence[str]] = {
        "datasets": dataset_names(),
        "models": model_names(),
        "losses": ("auto", *typing.get_args(LossName)),
        "masks": ("ring", "float", "none"),
        "mechanisms": mechanism_names(),
        "noises": ("activation", "offset"),
        "engines": _ENGINES,
        "serving-engines": ("loopback", *_ENGINES[1:]),
        "trackers": tuple(TRACKERS),
        "devices": ("auto", "cpu", "cuda", "mps"),
        "answers": ("secure", "plain"),
        "norm-inputs": ("exact", "scaled"),
        "lanes": tuple(lanes()),
        "benchmarks": tuple(BENCHMARKS),
        "commands": tuple(PRINTED),
        "tables": ("all", *tables()),
        **{kind: typing.get_args(literal) for kind, literal in literals.items()},
    }
    return {
        "protections": [*_protections()],
        "experiments": [(one.name, one.title) for one in all_experiments()],
        "settings": [*_settings(RunPlan, own_sections())],
        "hetero-settings": [*_settings(HeteroPlan, {})],
        **{kind: [(word, "") for word in found] for kind, found in words.items()},
    }


def _protections() -> Iterator[tuple[str, str]]:
    rungs = {word_of(rung.protection): f"the server sees {rung.server_sees}" for rung in LADDER}
    for word in protection_words():
        yield word, rungs.get(word, "")
    for name in baseline_names():
        yield name, "a baseline of the papers"


def _settings(plan: type[BaseModel], own: dict[str, type[BaseModel]]) -> Iterator[tuple[str, str]]:
    """`section.name=`, and whole where there are few values."""
    sections = {name: field.annotation for name, field in plan.model_fields.items()}
    for name, annotation in {**own, **sections}.items():
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for inner, field in annotation.model_fields.items():
                yield from _setting(f"{name}.{inner}", field)
        else:
            yield from _setting(name, plan.model_fields[name])


def _setting(name: str, field: Any) -> Iterator[tuple[str, str]]:
    default = field.get_default(call_default_factory=True)
    said = f"default {default!r}. " if default is not None else ""
    yield f"{name}=", said + inspect.cleandoc(field.description or "").partition("\n")[0]
    if typing.get_origin(field.annotation) is typing.Literal:
        for value in typing.get_args(field.annotation):
            yield f"{name}={value}", ""


if __name__ == "__main__":
    write_package_data(Path(sys.argv[1]))
