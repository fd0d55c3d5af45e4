"""Whether two versions of the package compute the same, bit for bit: models, gradients, messages, bytes, figures.

    python benchmarks/same_bits.py record before.json [--flare] [--only grid/perturbation ...]
    python benchmarks/same_bits.py compare before.json after.json [--leave-out PATTERN ...]

`record` runs small plans (`same_bits_plans.py`) by the public interface alone and writes what came out, with digests in
place of tensors: for every round the recovered gradient and the whole state, at the end the model, the messages of the
transcript and their bytes, the result as `--json` prints it, and the files of the run's directory. Times are left out.
`compare` prints what differs; the exit code is 1 if anything does. The same machine and one thread are assumed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import runpy
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import bilateral
import torch
from safetensors import safe_open
from torch import Tensor

from same_bits_plans import Case, all_cases, flare_cases

LEFT_OUT: Final = frozenset({"seconds", "time", "output"})
"""Fields of results and events that no two runs share."""
NOT_THERE: Final = "(not there)"
MAX_SHOWN: Final = 100


def digest(*values: object) -> str:
    """Of any values that messages and checkpoints are made of: what they hold, not what fields are called."""
    found = hashlib.sha256()
    for value in values:
        _feed(found.update, value)
    return found.hexdigest()[:16]


def _feed(update: Callable[[bytes], None], value: object) -> None:
    match value:
        case Tensor():
            update(f"{value.dtype} {tuple(value.shape)} ".encode())
            update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        case bytes():
            update(f"bytes {len(value)} ".encode() + value)
        case Mapping():
            _feed(update, [part for pair in value.items() for part in pair])
        case list() | tuple():
            update(f"list {len(value)} ".encode())
            for one in value:
                _feed(update, one)
        case _ if is_dataclass(value):
            _feed(update, [getattr(value, one.name) for one in fields(value)])
        case _:
            update(f"{value!r} ".encode())


def record_case(case: Case, folder: Path) -> dict[str, Any]:
    """What comes out of one plan; a plan that is refused has the words of the refusal."""
    try:
        match case.kind:
            case "run":
                return _record_run(case, folder)
            case "hetero":
                return _record_hetero(case, folder)
            case "audit":
                return _record_audit(case)
            case "command":
                return _record_command(case, folder)
    except bilateral.BilateralError as refusal:
        return {"refused": f"{type(refusal).__name__}: {refusal}"}


def _record_run(case: Case, folder: Path) -> dict[str, Any]:
    plan = bilateral.RunPlan().with_settings(case.settings)
    states: list[dict[str, str]] = []
    messages: list[str] = []

    def run(*, resume: bool) -> bilateral.RunResult:
        result = bilateral.run(
            plan,
            output=folder,
            resume=resume,
            reference=None if resume else case.reference,
            keep_messages=True,
            on_round=lambda _: states.append(state_of(folder)),
            should_stop=lambda: not resume and len(states) + 1 == case.stop_after,
        )
        messages.extend(digest(e.round_index, e.sender, e.receiver, e.message) for e in result.transcript.entries)
        return result

    result = run(resume=False)
    if case.stop_after is not None:
        result = run(resume=True)
    traffic = result.transcript
    return {
        "plan": {"fingerprint": plan.fingerprint(), "digest": plan.digest()},
        "model": {name: digest(tensor) for name, tensor in result.model.state_dict().items()},
        "states": states,
        "messages": {"contents": digest(messages), "number": traffic.num_messages},
        "bytes": {"up": traffic.bytes_up, "down": traffic.bytes_down},
        "result": timeless(result.as_dict()),
        "files": files_of(folder),
    }


def _record_hetero(case: Case, folder: Path) -> dict[str, Any]:
    plan = bilateral.HeteroPlan().with_settings(case.settings)
    states: list[dict[str, str]] = []

    def keep(_: object) -> None:
        state = state_of(folder)
        if not states or states[-1] != state:  # it is told of single answers too
            states.append(state)

    stages = iter(range(case.stop_after or 0))

    def stop_now() -> bool:
        return case.stop_after is not None and next(stages, None) is None

    result = bilateral.run_hetero(plan, output=folder, on_progress=keep, should_stop=stop_now)
    if not result.finished:
        result = bilateral.run_hetero(plan, output=folder, resume=True, on_progress=keep)
    return {
        "plan": {"digest": plan.digest()},
        "states": states,
        "result": timeless(result.as_dict()),
        "files": files_of(folder),
    }


def _record_audit(case: Case) -> dict[str, Any]:
    plan = bilateral.RunPlan().with_settings(case.settings)
    result = bilateral.audit_plan(plan, effort="smoke", only=case.experiments, save=False, num_workers=1)
    return {"result": timeless(result.as_dict())}


def _record_command(case: Case, folder: Path) -> dict[str, Any]:
    """As if typed: `python -m bilateral WORDS --json --quiet --output FOLDER`."""
    printed, code, before = io.StringIO(), 0, sys.argv
    sys.argv = ["bilateral", *case.words, "--json", "--quiet", "--output", str(folder)]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module("bilateral", run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    finally:
        sys.argv = before
    result = timeless(json.loads(printed.getvalue())) if code == 0 else printed.getvalue()
    return {"exit_code": code, "result": result, "state": state_of(folder), "files": files_of(folder)}


def timeless(value: Any) -> Any:
    """The same value without times and paths."""
    match value:
        case dict():
            return {key: timeless(one) for key, one in value.items() if key not in LEFT_OUT}
        case list() | tuple():
            return [timeless(one) for one in value]
        case _:
            return value


def state_of(folder: Path) -> dict[str, str]:
    """Of the checkpoint that lies there: its tensors as a set, apart from their names; models, and everything."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return {}
    with safe_open(path, "pt") as file:
        tensors = {name: digest(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (no mapping)
        state = json.loads(file.metadata()["state"])
    models = [found for name, found in tensors.items() if "model/" in name]
    return {
        "models": digest(sorted(models)),
        "all": digest(sorted(tensors.values())),
        "names": digest(sorted(tensors)),
        "rows": digest(state["rows"]),
        "bytes": digest([state["counters"].get(name) for name in ("bytes_up", "bytes_down", "num_messages")]),
    }


def files_of(folder: Path) -> dict[str, Any]:
    """What else lies in a run's directory."""
    found: dict[str, Any] = {"names": sorted(path.name for path in folder.iterdir() if path.is_file())}
    if (plan := folder / "plan.toml").exists():
        found["plan.toml"] = tomllib.loads(plan.read_text(encoding="utf-8"))
    for name in ("result.json", "privacy.json"):
        if (file := folder / name).exists():
            found[name] = digest(json.dumps(timeless(json.loads(file.read_text(encoding="utf-8")))))
    if (metrics := folder / "metrics.csv").exists():
        with metrics.open(encoding="utf-8", newline="") as file_of_rows:
            found["metrics.csv"] = list(csv.DictReader(file_of_rows))
    if (events := folder / "events.jsonl").exists():
        lines = events.read_text(encoding="utf-8").splitlines()
        found["events.jsonl"] = [timeless(json.loads(line)) for line in lines]
    return found


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with its path: `lenet/offset/1.model.head.weight`."""
    match value:
        case dict():
            for key, one in value.items():
                yield from flat(one, f"{path}.{key}" if path else key)
        case list():
            yield f"{path}.length", len(value)
            for index, one in enumerate(value):
                yield from flat(one, f"{path}[{index}]")
        case _:
            yield path, value


def differences(before: Any, after: Any, leave_out: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Paths with other values, or there in one of them alone; numbers must be the same to the last bit."""
    first, second = dict(flat(before)), dict(flat(after))
    return {
        path: (first.get(path, NOT_THERE), second.get(path, NOT_THERE))
        for path in dict.fromkeys([*first, *second])
        if not same(first.get(path, NOT_THERE), second.get(path, NOT_THERE))
        and not any(fnmatch(path, pattern) for pattern in leave_out)
    }


def same(first: Any, second: Any) -> bool:
    """1 is not 1.0, and NaN is NaN."""
    return type(first) is type(second) and repr(first) == repr(second)


def record(cases: Sequence[Case], target: Path) -> None:
    """Run them all; the file is written at the end, whole."""
    found = {}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as parent:
        for number, case in enumerate(cases):
            began = time.perf_counter()
            found[case.name] = record_case(case, Path(parent) / str(number))
            ending = "refused" if "refused" in found[case.name] else f"{time.perf_counter() - began:.1f} s"
            sys.stderr.write(f"{case.name}: {ending}\n")
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    refused = sum("refused" in one for one in found.values())
    took = time.perf_counter() - started
    sys.stdout.write(f"{len(found)} plans, of which {refused} are refused, in {took:.0f} s: {target}\n")


def compare(before: Path, after: Path, only: tuple[str, ...], leave_out: Sequence[str]) -> int:
    """Print what differs; 1 if anything does."""
    first, second = (
        {name: found for name, found in json.loads(path.read_text(encoding="utf-8")).items() if name.startswith(only)}
        for path in (before, after)
    )
    found = differences(first, second, leave_out)
    for path, (old, new) in list(found.items())[:MAX_SHOWN]:
        sys.stdout.write(f"{path}: {old!r} -> {new!r}\n")
    if len(found) > MAX_SHOWN:
        sys.stdout.write(f"... and {len(found) - MAX_SHOWN} more\n")
    cases = {name for name in {**first, **second} if any(path.startswith(f"{name}.") for path in found)}
    sys.stdout.write(
        f"{len(dict(flat(first)))} values of {len(first)} plans: {len(found)} differ, in {len(cases)} plans.\n"
    )
    return 1 if found else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the plans and write what came out")
    recording.add_argument("target", type=Path)
    recording.add_argument("--flare", action="store_true", help="also in FLARE's simulator")
    comparing = commands.add_parser("compare", help="print what differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--leave-out", nargs="+", default=[], help="patterns of paths, such as '*.files.names*'")
    for command in (recording, comparing):
        command.add_argument("--only", nargs="+", default=[""], help="plans whose names begin so")
    options = parser.parse_args(words)
    only = tuple(options.only)
    if options.command == "compare":
        return compare(options.before, options.after, only, options.leave_out)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = [*all_cases(), *(flare_cases() if options.flare else ())]
    record([case for case in cases if case.name.startswith(only)], options.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
