"""Secret-shared prediction: ours, CrypTen and SPU on the same networks, alternately, in one run.

    python benchmarks/secure_prediction.py --crypten PYTHON --spu PYTHON --model vgg-7 resnet-8 --batch-size 1

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

import torch
from bilateral.models.zoo import build_model
from rich.console import Console

from comparison import machine, print_table, rows_of
from driver import add_conduct, add_peers, alternate, chosen_peers, count, is_skipped
from network_export import export_network
from systems import OURS, Case, Measurement, System, crypten, ours, spu

MODELS: Final = ("vgg-7", "resnet-8", "resnet-10")
INPUT_SHAPE: Final = (3, 32, 32)
NUM_OUTPUTS: Final = 10


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
                runs = alternate(included, case, weights, options, progress, failures)
                rows += rows_of(case, runs)
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


def chosen_systems(options: argparse.Namespace, progress: Console) -> list[System[Case, Measurement]]:
    """Ours in its two useful styles, then every peer whose interpreter was given; the others are named."""
    mine = [ours(options.batches, options.threads), ours(options.batches, options.threads, "hardened")]
    makers = [(name, partial(make, batches=options.batches)) for name, make in (("crypten", crypten), ("spu", spu))]
    return mine + chosen_peers(options, progress, makers)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_peers(parser)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["vgg-7", "resnet-8"])
    parser.add_argument("--batch-size", nargs="+", type=count, default=[1, 32])
    parser.add_argument("--repeats", type=count, default=5, help="passes; each runs every system once")
    parser.add_argument(
        "--batches", type=count, default=1, help="timed batches of a system in a pass, after one untimed"
    )
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="SYSTEM[:MODEL[:BATCH]]", help=f"such as crypten:vgg-7:32, or {OURS}"
    )
    add_conduct(parser)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
