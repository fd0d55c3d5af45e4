"""Options that several commands share, and how they end in a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.markup import escape

from bilateral.cli.console import out, print_json
from bilateral.documents import parse_toml
from bilateral.engine.kind import has_own_command, read_any
from bilateral.engine.named_code import check_named, code_of
from bilateral.engine.plan import RunPlan, load_plan
from bilateral.errors import PlanError, ThresholdError
from bilateral.protections.ladder import in_a_sentence
from bilateral.protections.masks.protection import MASKS
from bilateral.protections.registry import baseline_names, in_words, mechanism_named, mechanism_names, protection_words
from bilateral.protections.sound.protection import SOUND
from bilateral.runs.hetero.plan import HeteroPlan

AnyPlan = TypeVar("AnyPlan", bound=RunPlan | HeteroPlan)
PlanArgument = Annotated[
    Path | None, typer.Argument(help="Plan file (TOML). Without one: the embedded default.", show_default=False)
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="BILATERAL_DATA", help="Folder with data files.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
DataName = Annotated[str | None, typer.Option("--data", help="Data set, e.g. digits, cifar10.", show_default=False)]
ModelName = Annotated[str | None, typer.Option("--model", help="Model, e.g. mlp-5, resnet-20.", show_default=False)]
Clients = Annotated[int | None, typer.Option("--clients", help="Number of clients.", show_default=False)]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds.", show_default=False)]
LossName = Annotated[
    str | None,
    typer.Option("--loss", help="mse, ce, bce, huber, auto, or package.module:function.", show_default=False),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any plan setting: --set training.learning_rate=0.05", show_default=False),
]


PROTECTION_HELP = (
    f"{in_words(protection_words())}. {in_a_sentence()}. `bilateral ladder` has more. Baselines of the papers: "
    f"{', '.join(baseline_names())}."
)
MECHANISM_HELP = f"{in_words(mechanism_names()[1:])}."
CLEAR = object()
"""As a named option: set to nothing, where None means that the option was not given."""

SOUND_RUN: Final[Mapping[str, Any]] = {
    "protection": MASKS,
    "model.name": "mlp-3",
    "training.batch_size": 128,
    "training.learning_rate": 0.3,
    "training.rounds": 120,
    "aggregation.width": "auto",
}
"""What a budget is spent on if nothing is said of it. On the digits: a few points from a training without noise."""


def budget(
    path: Path | None, *, mechanism: str | None = None, epsilon: float | None = None, multiplier: float | None = None
) -> dict[str, Any]:
    """Settings of a privacy budget. It replaces the plan's, in whichever form that one is; a plan's mechanism stays."""
    if mechanism is None and (epsilon is not None or multiplier is not None):
        planned = None if path is None else load_plan(path).chosen.noise
        mechanism = SOUND if planned is None else planned.name
    values: dict[str, Any] = {"noise.epsilon": epsilon, "noise.noise_multiplier": multiplier}
    if epsilon is not None and multiplier is None:
        values["noise.noise_multiplier"] = CLEAR
    if multiplier is not None and epsilon is None:
        values["noise.epsilon"] = CLEAR
    return {"noise.mechanism": mechanism, **values}


def with_sound_defaults(path: Path | None, named: dict[str, Any], settings: list[str] | None) -> dict[str, Any]:
    """`named`, and what makes a budget work where nothing was said of how the model is protected.

    FedSGD under ring masks with clipping and noise: what the model learns from is one term, which noise harms least.
    Whoever names a protection, a mechanism other than sound, a setting of perturbation or masks, or the squared error
    is taken at their word, and so is a plan.
    """
    if not is_bare_budget(path, named, settings):
        return named
    said = {key for key, value in named.items() if value is not None}
    said |= {parse_setting(text)[0] for text in settings or ()}
    return {**named, **{key: value for key, value in SOUND_RUN.items() if key not in said}}


def is_bare_budget(path: Path | None, named: dict[str, Any], settings: list[str] | None) -> bool:
    """Whether a budget for sound noise is given, and nothing that decides what the noise is added to."""
    given = {key: value for key, value in named.items() if value is not None}
    given.update(parse_setting(text) for text in settings or ())
    has_budget = any(given.get(f"noise.{name}") not in (None, CLEAR) for name in ("epsilon", "noise_multiplier"))
    if path is not None or not has_budget or not _spends_budget(given.get("noise.mechanism")):
        return False
    decided = ("protection", "perturbation", "aggregation.masks")
    return given.get("training.loss") != "mse" and not any(key.startswith(decided) for key in given)


def _spends_budget(mechanism: Any) -> bool:
    """Whether a mechanism of this name is noise whose epsilon is of the whole run, as that of sound noise is."""
    noise = mechanism_named(mechanism) if mechanism in mechanism_names() else None
    return noise is not None and noise.traits(plan := RunPlan(), plan.traits).spends_budget


def build_plan(path: Path | None, named: dict[str, Any], settings: list[str] | None) -> RunPlan:
    """The plan file (or the default), then named options, then `--set`, later ones winning."""
    plan = load_plan(path) if path is not None else RunPlan()
    changes = {key: None if value is CLEAR else value for key, value in named.items() if value is not None}
    changes.update(parse_setting(text) for text in settings or [])
    plan = plan.with_settings(changes) if changes else plan
    check_named(path or "The plan", plan, named_in(changes))
    return plan


def named_in(changes: Any) -> Iterator[str]:
    """Every text in settings that a user typed: what is named there is named by the user."""
    if isinstance(changes, str):
        yield changes
    elif isinstance(changes, dict | list):
        for inner in changes.values() if isinstance(changes, dict) else changes:
            yield from named_in(inner)


def resumed(source: Path, plan: AnyPlan, command: str, **named: str | None) -> AnyPlan:
    """A stored plan to go on with. `named`: functions in it, named again (as `data`, `model`, `models` or `loss`)."""
    stored: dict[str, str] = {"data": plan.data.name, **code_of(plan)}
    if isinstance(plan, RunPlan):
        stored |= {"model": plan.model.name, "loss": plan.training.loss}
    if any(name is not None and name != stored.get(what) for what, name in named.items()):
        raise PlanError(
            f"--resume goes on with the plan of {source}.",
            remedy="Give no other settings with it; --data, --model and --loss only to name code of that plan again.",
        )
    check_named(source, plan, named.values(), ("bilateral", command, "--resume", str(source)))
    return plan


def parse_setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise PlanError(
            f"Expected --set section.key=value, got {text!r}.",
            remedy="--set training.learning_rate=0.05, for one; `bilateral run --write-plan FILE` lists all settings.",
        )
    try:
        return key.strip(), parse_toml(f"x = {value}")["x"]
    except ValueError:
        return key.strip(), value.strip()  # a bare word is a string


def check_writable(path: Path | None) -> None:
    """Find out before the work, not after it, that a file cannot be written."""
    if path is not None and not path.parent.is_dir():
        raise PlanError(f"There is no folder {path.parent} for {path.name}.", remedy="Make it first.")


def write_new_plan(text: str, path: Path, *, json: bool) -> None:
    """What `--write-plan` does, for every kind of run."""
    check_writable(path)
    if path.exists():
        raise PlanError(f"{path} already exists.", remedy="Choose another file; nothing was overwritten.")
    path.write_text(text, encoding="utf-8")
    if json:
        print_json({"plan": str(path)})
    else:
        out.print(f"Plan written to {escape(str(path))}")


def deployable_plan(path: Path) -> Any:
    """A plan for sites on machines of their own: of rounds, or of a kind without a command for its plans."""
    return load_plan(path) if has_own_command(path) else read_any(path)[1]


def check_trained(values: Mapping[str, Any]) -> None:
    """A run whose every round failed has a result, but it is an error: its model is as it began.

    Called when the result is on standard output, so that scripts can read what happened.
    """
    failed = values["rounds_failed"]
    if failed and len(failed) == values["rounds"]:
        count = "The only round" if len(failed) == 1 else f"All {len(failed)} rounds"
        raise ThresholdError(
            f"{count} failed, so the model is untrained; the last one so: {failed[-1]['reason']}",
            remedy="Bring more clients, lower federation.dropout if it is simulated, or aggregation.threshold; "
            "then start anew.",
        )


def parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise PlanError(
            f"Expected a shape like 3,32,32, got {text!r}.", remedy="Of one sample, without the batch."
        ) from error
    if not shape or min(shape) < 1:
        raise PlanError(f"Expected a shape of positive numbers, got {text!r}.", remedy="Such as 3,32,32.")
    return shape
