"""Secret-shared prediction: ours, CrypTen and SPU on the same networks, alternately, in one run.

    python benchmarks/secure_prediction.py --crypten PYTHON --spu PYTHON --model vgg-7 resnet-8 --batch-size 1

PYTHON is the interpreter of the peer's own environment; benchmarks/README.md says how to make it and what is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from bilateral.errors import BilateralError
from bilateral.models.zoo import build_model
from rich.console import Console

from comparison import machine, print_table, rows_of
from network_export import export_network
from systems import OURS, Case, Measurement, System, crypten, measure, ours, spu

MODELS: Final = ("vgg-7", "resnet-8", "resnet-10")
INPUT_SHAPE: Final = (3, 32, 32)
NUM_OUTPUTS: Final = 10
_INSTALL: Final = {
    "crypten": "pip install torch==2.13.0 numpy pyyaml omegaconf onnx && pip install --no-deps crypten==0.4.1",
    "spu": "pip install spu==0.9.5 jax==0.4.34 jaxlib==0.4.34 numpy==1.26.4",
}


def main() -> None:
    options = parse(sys.argv[1:])
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    systems = chosen_systems(options, progress)
    facts = machine(options.threads)
    progress.print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items()))
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in options.model:
            weights = Path(folder) / f"{model}.npz"
            write_network(model, max(options.batch_size), weights)
            for batch_size in options.batch_size:
                case = Case(model, batch_size)
                included = [s for s in systems if not is_skipped(s.name, case, options.skip)]
                rows += rows_of(case, alternate(included, case, weights, options, progress, failures))
    if options.json:
        sys.stdout.write(json.dumps({"bench": "peers", "machine": facts, "rows": rows, "failures": failures}) + "\n")
    else:
        print_table(rows)
    sys.exit(1 if failures else 0)


def write_network(model: str, num_images: int, path: Path) -> None:
    """The network that all peers compute, with random weights and images; `bench secure-prediction` has its own."""
    network = build_model(model, input_shape=INPUT_SHAPE, num_outputs=NUM_OUTPUTS, batch_norm=False)
    images = torch.randn(num_images, *INPUT_SHAPE, generator=torch.Generator().manual_seed(1))
    export_network(network, images, path)


def chosen_systems(options: argparse.Namespace, progress: Console) -> list[System]:
    """Ours in its two useful styles, then every peer whose interpreter was given; the others are named."""
    systems = [ours(options.batches, options.threads), ours(options.batches, options.threads, "hardened")]
    for name, make in (("crypten", crypten), ("spu", spu)):
        python = getattr(options, name)
        if python is None:
            progress.print(f"{name} is skipped. In an environment of its own: {_INSTALL[name]}; then --{name} PYTHON.")
        else:
            systems += make(python, options.batches)
    return systems


def is_skipped(system: str, case: Case, skips: Sequence[str]) -> bool:
    """Whether `SYSTEM`, `SYSTEM:MODEL` or `SYSTEM:MODEL:BATCH` of this case was asked to be left out."""
    names = (system, f"{system}:{case.model}", f"{system}:{case.model}:{case.batch_size}")
    return any(name in skips for name in names)


def alternate(
    systems: Sequence[System],
    case: Case,
    weights: Path,
    options: argparse.Namespace,
    progress: Console,
    failures: list[str],
) -> dict[str, list[Measurement | None]]:
    """Every system once a pass, so that a drifting clock or a busy neighbour hits all; one that fails is left out."""
    runs: dict[str, list[Measurement | None]] = {system.name: [] for system in systems}
    failed: set[str] = set()
    for number in range(options.repeats):
        for system in systems:
            found = None
            if system.name not in failed:
                try:
                    found = measure(
                        system, case, weights, threads=options.threads, timeout_seconds=options.timeout_seconds
                    )
                    said = f"{found.seconds_per_prediction:.3g} s, {found.megabytes_per_prediction:.3g} MB a prediction"
                    progress.print(f"{case}, pass {number + 1} of {options.repeats}, {system.name}: {said}")
                except BilateralError as error:
                    failed.add(system.name)
                    failures.append(str(error))
                    progress.print(str(error), markup=False)
            runs[system.name].append(found)
    return runs


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--crypten", type=Path, metavar="PYTHON", help="interpreter of CrypTen's environment")
    parser.add_argument("--spu", type=Path, metavar="PYTHON", help="interpreter of SPU's environment")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["vgg-7", "resnet-8"])
    parser.add_argument("--batch-size", nargs="+", type=_count, default=[1, 32])
    parser.add_argument("--repeats", type=_count, default=5, help="passes; each runs every system once")
    parser.add_argument(
        "--batches", type=_count, default=1, help="timed batches of a system in a pass, after one untimed"
    )
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="SYSTEM[:MODEL[:BATCH]]", help=f"such as crypten:vgg-7:32, or {OURS}"
    )
    cores = max(1, (os.cpu_count() or 1) // 2)
    parser.add_argument(
        "--threads", type=_count, default=cores, help="OMP_NUM_THREADS of every process of every system"
    )
    parser.add_argument("--timeout-seconds", type=float, default=1800.0, help="for one run of one system")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser.parse_args(words)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
