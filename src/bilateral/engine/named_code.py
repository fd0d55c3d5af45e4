"""Code runs because a user named it, and never because a file did.

A plan can name functions of a user's own, `package.module:function`, as its data or model. Plans are stored in run
directories, audits and plan files, and are passed on: who opens one must not thereby run `os:system`. So whoever goes
on with what a file says names such functions again, in that very call; nothing is imported before.

Formal guarantee (tests/cli/test_named_code.py): no command of `bilateral`, and none of `bilateral.load_plan`,
`export_run` and `load_exported`, lets a module be imported that a file names and the caller does not.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from bilateral.arguments import checked
from bilateral.engine import plan as plans
from bilateral.engine.plan import RunPlan
from bilateral.errors import CheckpointError


class NamesCode(Protocol):
    """A plan that says by itself what it names."""

    def names(self) -> dict[str, str]:
        """Data and models, by the option that names them; several models with commas between."""
        ...


def is_own_code(name: str) -> bool:
    """Does a name of data or of a model stand for a function outside of this package?"""
    return ":" in name


def code_of(plan: RunPlan | NamesCode) -> dict[str, str]:
    """What a plan would run besides this package, by the option that names it."""
    if isinstance(plan, RunPlan):
        found: dict[str, str] = {"data": plan.data.name, "model": plan.model.name, "loss": plan.training.loss}
    else:
        found = plan.names()
    return {what: name for what, name in found.items() if is_own_code(name)}


@checked
def load_plan(path: str | Path, *, code: Sequence[str] = ()) -> RunPlan:
    """Read a plan from a TOML file. Functions of your own that it names are named in `code` as well, or refused."""
    plan = plans.load_plan(path)
    unnamed = [name for name in code_of(plan).values() if name not in code]
    if unnamed:
        raise _refusal(path, unnamed, f'load_plan("{path}", code={unnamed})')
    return plan


def check_named(
    source: str | Path, plan: RunPlan | NamesCode, by_user: Iterable[str | None], command: Sequence[str] = ()
) -> None:
    """Refuse a stored plan with functions that the caller has not named. `command`: what the caller asked for."""
    given = {part for name in by_user if name is not None for part in (name, *name.split(","))}
    wanted = code_of(plan)
    unnamed = [
        name for names in wanted.values() for name in names.split(",") if is_own_code(name) and name not in given
    ]
    if unnamed:
        options = [part for what, name in wanted.items() for part in (f"--{what}", name)]
        raise _refusal(source, unnamed, shlex.join([*command, *options]))


def check_named_by_user(path: Path, what: str, in_file: str, by_user: str | None) -> None:
    """Refuse to run a function that only a file names."""
    if is_own_code(in_file) and in_file != by_user:
        raise _refusal(path, [in_file], f"--{what} {in_file}")


def _refusal(source: str | Path, names: Sequence[str], remedy: str) -> CheckpointError:
    wanted = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
    return CheckpointError(
        f"{source} wants to run {wanted}, and a file must not decide what code runs.",
        remedy=f"If you trust that code, name it: {remedy}",
    )
