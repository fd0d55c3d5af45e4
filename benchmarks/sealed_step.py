"""One training step with everything secret: ours, CrypTen and SPU on the same networks, alternately, in one run.

    python benchmarks/sealed_step.py --crypten PYTHON --spu PYTHON --case mlp-a:mse:128 lenet:ce:32

PYTHON is the interpreter of the peer's own environment; benchmarks/README.md says how to make it and what is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from comparison import machine
from driver import add_conduct, add_peers, alternate, chosen_peers, count, is_skipped
from step_comparison import print_steps, step_rows
from step_export import LOSSES, export_step
from step_networks import NETWORKS, make_batch
from step_systems import StepCase, StepSystem, crypten_steps, our_step, spu_steps
from systems import OURS

CASES: Final = (
    StepCase("mlp-tab", "mse", 64),
    StepCase("mlp-a", "mse", 128),
    StepCase("mlp-a", "ce", 128),
    StepCase("lenet", "mse", 32),
    StepCase("lenet", "ce", 32),
    StepCase("lenet", "mse", 128),
    StepCase("lenet", "ce", 128),
    StepCase("resnet-8", "mse", 32),
)


def main() -> None:
    options = parse(sys.argv[1:])
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    systems = chosen_systems(options, progress)
    facts = machine(options.threads)
    progress.print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items()))
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in options.case:
            task = Path(folder) / f"{'-'.join(case.words)}.npz"
            write_task(case, task)
            included = [system for system in systems if not is_skipped(system.name, case, options.skip)]
            runs = alternate(included, case, task, options, progress, failures)
            rows += step_rows(case, runs)
    if options.json:
        answer = {"bench": "sealed-step peers", "machine": facts, "rows": rows, "failures": failures}
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        print_steps(rows)
    sys.exit(1 if failures else 0)


def write_task(case: StepCase, path: Path) -> None:
    """What all peers compute, with random weights and samples; `bench sealed-step` has its own."""
    network = NETWORKS[case.model]
    export_step(network.build(), *make_batch(network, case.batch_size), case.loss, path)


def chosen_systems(options: argparse.Namespace, progress: Console) -> list[StepSystem]:
    """Ours, then every peer whose interpreter was given; the others are named."""
    systems = [] if options.only == "peers" else [our_step(options.steps)]
    if options.only == "ours":
        return systems
    steps = (("crypten", crypten_steps), ("spu", spu_steps))
    makers = [(name, partial(make, steps=options.steps)) for name, make in steps]
    return systems + chosen_peers(options, progress, makers)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_peers(parser)
    parser.add_argument(
        "--case",
        nargs="+",
        type=step_case,
        default=list(CASES),
        metavar="MODEL:LOSS:BATCH",
        help=f"of {', '.join(NETWORKS)}; {' or '.join(LOSSES)}",
    )
    parser.add_argument("--only", choices=("ours", "peers"), help="leave out the others")
    parser.add_argument("--repeats", type=count, default=3, help="passes; each runs every system once")
    parser.add_argument("--steps", type=count, default=1, help="timed steps of a system in a pass, after one untimed")
    parser.add_argument(
        "--skip",
        nargs="+",
        default=[],
        metavar="SYSTEM[:MODEL[:LOSS[:BATCH]]]",
        help=f"such as spu-aby3:lenet:ce:128, or {OURS}",
    )
    add_conduct(parser)
    return parser.parse_args(words)


def step_case(text: str) -> StepCase:
    """`MODEL:LOSS:BATCH`, for argparse."""
    model, loss, batch_size = [*text.split(":"), "", ""][:3]
    if text.count(":") != 2 or model not in NETWORKS or loss not in LOSSES:
        raise argparse.ArgumentTypeError(
            f"expected MODEL:LOSS:BATCH with a model of {', '.join(NETWORKS)} and a loss of {', '.join(LOSSES)}, "
            f"got {text!r}"
        )
    if loss == "ce" and NETWORKS[model].num_outputs == 1:
        raise argparse.ArgumentTypeError(f"{model} has one output and no classes; ask for {model}:mse:{batch_size}")
    return StepCase(model, loss, count(batch_size))


if __name__ == "__main__":
    main()
