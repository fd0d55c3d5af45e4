"""Federated runs on clinical data, site by site: what a clinic would ask of a result.

    python -m benchmarks.clinical heart-disease --seeds 5 --data-dir DATA
    python -m benchmarks.clinical ham10000 --seeds 1 --rounds 32 --data-dir DATA
    python -m benchmarks.clinical ham10000-half-size --seeds 2 --data-dir DATA
    python -m benchmarks.clinical digit-pairs --seeds 3

Under ring masks, with a validation part of the server's test data, early stopping, and the best model kept. Figures are
means over seeds, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch.nn.functional as F
from bilateral import Dataset, Split, load_dataset
from bilateral.engine.plan import RunPlan, parse_plan
from bilateral.runs.rounds.in_process import run

EVALUATION: Final = {
    "metrics": ["auroc", "auprc", "f1", "sensitivity", "specificity", "ece"],
    "validation": 0.4,
}
CASES: Final[dict[str, dict[str, Any]]] = {
    "heart-disease": {
        "model": {"name": "mlp-3"},
        "federation": {"partition": "site"},
        "training": {"rounds": 400, "learning_rate": 0.05, "schedule": "constant", "evaluate_every": 5},
        "evaluation": {**EVALUATION, "patience_rounds": 60},
    },
    "ham10000": {
        "model": {"name": "lenet"},
        "federation": {"partition": "site"},
        "training": {
            "rounds": 50,
            "learning_rate": 0.05,
            "momentum": 0.0,
            "schedule": "constant",
            "local_steps": 8,
            "evaluate_every": 4,
            "augment": True,
        },
        "evaluation": {**EVALUATION, "monitor": "auroc", "patience_rounds": 20},
    },
    "ham10000-half-size": {
        "data": {"name": "benchmarks.clinical:half_size_ham10000"},
        "model": {"name": "lenet"},
        "federation": {"partition": "site"},
        "training": {
            "rounds": 40,
            "learning_rate": 0.01,
            "momentum": 0.9,
            "schedule": "constant",
            "local_epochs": 1,
            "evaluate_every": 2,
            "augment": True,
        },
        "evaluation": {**EVALUATION, "monitor": "auroc", "patience_rounds": 16},
    },
    "digit-pairs": {
        "model": {"name": "lenet"},
        "federation": {"clients": 5},
        "training": {
            "rounds": 120,
            "learning_rate": 0.1,
            "momentum": 0.0,
            "schedule": "constant",
            "local_steps": 5,
            "evaluate_every": 5,
        },
        "evaluation": {**EVALUATION, "patience_rounds": 30},
    },
}
SHOWN: Final = ("auroc", "auprc", "balanced_accuracy", "accuracy", "exact_match", "f1", "sensitivity", "ece")


def half_size_ham10000(data_dir: Path | None = None) -> Dataset:
    """Pictures of 32x32, each pixel the mean of four: a quarter of the time."""
    whole = load_dataset("ham10000", data_dir)
    train, test = (Split(F.avg_pool2d(part.inputs, 2), part.targets, part.sites) for part in (whole.train, whole.test))
    return replace(whole, train=train, test=test)


def plan_for(case: str, seed: int, weights: Any, rounds: int | None) -> RunPlan:
    """One run of a case."""
    values: dict[str, Any] = {"seed": seed, "protection": "masks", "data": {"name": case}, **CASES[case]}
    values["training"] = {**values["training"], "class_weights": weights}
    if rounds is not None:
        values["training"]["rounds"] = rounds
    return parse_plan(values, "of a benchmark")


def line(case: str, weights: Any, seeds: int, rounds: int | None, data_dir: Path | None) -> str:
    """Means over seeds, as a row of a table; per site where the data say so."""
    results = [
        run(plan_for(case, seed, weights, rounds), save=False, reference=False, data_dir=data_dir)
        for seed in range(seeds)
    ]
    cells = [f"{case}, weights {weights or 'none'}"]
    for name in SHOWN:
        values = [result.metrics[f"test_{name}"] for result in results if f"test_{name}" in result.metrics]
        if values:
            cells.append(f"{name} {statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    best = [result.best_round or 0 for result in results]
    cells.append(f"best after {min(best)} to {max(best)}, ended after {[result.rounds for result in results]}")
    cells.append(f"{statistics.mean(result.seconds for result in results):.1f} s")
    cells += [
        f"{site}: auroc {statistics.mean(r.per_site[site].get('test_auroc', 0.5) for r in results):.3f}, "
        f"balanced {statistics.mean(r.per_site[site]['test_balanced_accuracy'] for r in results):.3f}"
        for site in results[0].per_site
    ]
    return "\n    ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    choices: list[list[float] | str] = [[], "balanced"]
    for weights in choices:
        print(line(chosen.case, weights, chosen.seeds, chosen.rounds, chosen.data_dir), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
