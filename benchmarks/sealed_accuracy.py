"""Models that sealed training makes, beside FedSGD's own spread over seeds: the command `bilateral run`, case by case.

python benchmarks/sealed_accuracy.py digits bank-marketing --json-file found.json
python benchmarks/sealed_accuracy.py --json-file found.json --table

FedSGD runs on seeds 0 to 4; sealed training, whose sums are FedSGD's, rounded, on the first of them (`--sealed-seeds`).
A seed decides the initial model, who has which samples, and all batches, for both alike: so there are two questions,
and two columns: how far sealed training is from FedSGD on the same seed, and how far FedSGD is from itself on others.
What is in the file already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

METRICS: Final = ("test_accuracy", "test_balanced_accuracy", "test_mse")


@dataclass(frozen=True)
class Case:
    """`options`: of `bilateral run`, besides the protection and the seed."""

    name: str
    options: tuple[str, ...]


def _case(name: str, options: str) -> Case:
    return Case(name, tuple(options.split()))


CASES: Final = {
    case.name: case
    for case in (
        _case("digits", "--data digits --model mlp-3"),
        _case("breast-cancer", "--data breast-cancer --model mlp-3 --rounds 60"),
        _case("bank-marketing", "--data bank-marketing --model mlp-3 --clients 10 --rounds 200 "
              "--set training.batch_size=64 --set data.options.task=classification"),
        _case("mnist", "--data mnist --model lenet --rounds 60 --set training.learning_rate=0.01"),
        _case("mnist-faster", "--data mnist --model lenet --rounds 60 --set training.learning_rate=0.03"),
        _case("cifar10", "--data cifar10 --model resnet-8 --set model.options.batch_norm=false --clients 3 --rounds 60 "
              "--set training.batch_size=16"),
    )
}  # fmt: skip


def run(case: Case, protection: str, seed: int) -> dict[str, Any]:
    """One run, in a process of its own: its metrics, seconds and megabytes."""
    command = [sys.executable, "-m", "bilateral", "run", "--protection", protection, *case.options]
    command += ["--seed", str(seed), "--no-reference", "--quiet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found = json.loads(done.stdout)
    return {
        "metrics": {name: found["metrics"][name] for name in METRICS if name in found["metrics"]},
        **{name: found[name] for name in ("rounds", "seconds", "megabytes_up", "megabytes_down")},
    }


def as_table(found: dict[str, Any]) -> str:
    """Of what is in the file: one row a case and metric."""
    lines = [
        "| case | metric | sealed, by seed | FedSGD, same seeds | FedSGD, all seeds: mean (lowest to highest) |"
        " inside | sealed, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in found.items():
        sealed, plain = rows.get("sealed", {}), rows.get("fedsgd", {})
        seeds = [seed for seed in sealed if seed in plain]
        if not seeds:
            continue
        for metric in sealed[seeds[0]]["metrics"]:
            ours, same = ([side[seed]["metrics"][metric] for seed in seeds] for side in (sealed, plain))
            spread = [row["metrics"][metric] for row in plain.values()]
            inside = all(min(spread) <= value <= max(spread) for value in ours)
            seconds = ", ".join(f"{sealed[seed]['seconds']:.0f}" for seed in seeds)
            lines.append(
                f"| {name} | {metric} | {_numbers(ours)} | {_numbers(same)} | {statistics.mean(spread):.4f} "
                f"({min(spread):.4f} to {max(spread):.4f}) | {'yes' if inside else 'no'} | {seconds} |"
            )
    return "\n".join(lines)


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="All of them, if none is named.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sealed-seeds", type=int, default=1)
    parser.add_argument("--json-file", type=Path, required=True, help="What was found; runs that are in it stay.")
    parser.add_argument("--table", action="store_true", help="Print the table of the file and run nothing.")
    arguments = parser.parse_args()
    path: Path = arguments.json_file
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in () if arguments.table else arguments.cases or CASES:
        for protection, count in (("fedsgd", arguments.seeds), ("sealed", arguments.sealed_seeds)):
            rows = found.setdefault(name, {}).setdefault(protection, {})
            for seed in range(count):
                if str(seed) not in rows:
                    rows[str(seed)] = run(CASES[name], protection, seed)
                    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
                    sys.stderr.write(f"{name} {protection} {seed}: {rows[str(seed)]}\n")
    sys.stdout.write(f"{as_table(found)}\n")


if __name__ == "__main__":
    main()
