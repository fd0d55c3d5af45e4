"""FedAvg here and in Flower: the same model, data, partition and settings; accuracy, seconds and bytes.

    PYTHONPATH=src:benchmarks FLOWER/bin/python benchmarks/flower_fedavg.py [--rounds 20] [--seeds 3]

FLOWER is an environment with `flwr` and `ray` beside torch and what `bilateral` needs. Flower's clients train with a
loop of plain torch, as its tutorials do, in its simulation engine; ours in one process, in the clear and under ring
masks. Each seed gives both the same initial weights and the same partition; batches are drawn by each in its own way.
Bytes are those of the arrays that travel. Both sides run in turn, seed by seed, and clocks start when both are warm.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_agent_register_timeout_ms", "200000")  # of ray's start, which a busy machine delays
os.environ.setdefault("RAY_raylet_start_wait_time_s", "200")

import torch
import torch.nn.functional as F
from bilateral import RunPlan, run
from bilateral.engine.federation import Federation, load_federation
from bilateral.engine.setup import initial_model
from bilateral.learning.evaluation import evaluate
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIENTS: Final = 5
SETTINGS: Final[dict[str, Any]] = {
    "data.name": "digits",
    "model.name": "lenet",
    "federation.clients": CLIENTS,
    "training.local_epochs": 1,
    "training.batch_size": 32,
    "training.learning_rate": 0.03,
    "training.momentum": 0.9,
    "training.schedule": "constant",
    "training.evaluate_every": 1000,
    "training.checkpoint_every": 1000,
}


@dataclass(frozen=True)
class Outcome:
    """One training: its accuracy, the time of its rounds, and what travelled."""

    accuracy: float
    seconds: float
    megabytes_up: float
    megabytes_down: float


def plan_of(seed: int, rounds: int, protection: str) -> RunPlan:
    return RunPlan().with_settings({**SETTINGS, "seed": seed, "training.rounds": rounds, "protection": protection})


@cache
def federation_of(seed: int) -> Federation:
    return load_federation(plan_of(seed, 1, "fedavg"))


def train_here(seed: int, rounds: int, protection: str) -> Outcome:
    """By `bilateral run`."""
    result = run(plan_of(seed, rounds, protection), reference=False)
    traffic = result.transcript
    return Outcome(result.metrics["test_accuracy"], result.seconds, traffic.bytes_up / 1e6, traffic.bytes_down / 1e6)


def train_one(model: nn.Module, seed: int, client: int, round_index: int) -> int:
    """What a Flower user writes: one epoch of SGD over a client's own samples; returns their number."""
    share = list(federation_of(seed).shares.values())[client]
    draws = torch.Generator().manual_seed(1000 * round_index + client)
    loader = DataLoader(TensorDataset(share.inputs, share.targets), batch_size=32, shuffle=True, generator=draws)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    model.train()
    for inputs, targets in loader:
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimiser.step()
    return len(share)


def train_in_flower(seed: int, rounds: int) -> Outcome:
    """By Flower's FedAvg strategy in its simulation engine."""
    app, clientapp, serverapp, strategies, simulation = (
        importlib.import_module(f"flwr.{name}")
        for name in ("app", "clientapp", "serverapp", "serverapp.strategy", "simulation")
    )

    client_app, server_app = clientapp.ClientApp(), serverapp.ServerApp()
    found: dict[str, float] = {}

    @client_app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        model = initial_model(plan_of(seed, 1, "fedavg"), federation_of(seed).problem)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client, round_index = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        count = train_one(model, seed, client, round_index)
        content = {"arrays": app.ArrayRecord(model.state_dict()), "metrics": app.MetricRecord({"num-examples": count})}
        return app.Message(content=app.RecordDict(content), reply_to=message)

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:  # noqa: ARG001
        federation = federation_of(seed)
        model = initial_model(plan_of(seed, 1, "fedavg"), federation.problem)
        arrays = app.ArrayRecord(model.state_dict())
        strategy = strategies.FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        warm = strategy.start(grid, arrays, num_rounds=1)  # actors are up, and their modules imported
        assert warm.arrays is not None
        began = time.perf_counter()
        done = strategy.start(grid, arrays, num_rounds=rounds)
        found["seconds"] = time.perf_counter() - began
        model.load_state_dict(done.arrays.to_torch_state_dict())
        model.eval()
        test = federation.test_data
        found["accuracy"] = evaluate(model, test, federation.problem.objective)["test_accuracy"]
        found["bytes"] = float(sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()))

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    simulation.run_simulation(server_app, client_app, CLIENTS, backend_config=backend)
    traffic = found["bytes"] * CLIENTS * rounds / 1e6
    return Outcome(found["accuracy"], found["seconds"], traffic, traffic)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides: dict[str, Callable[[int], Outcome]] = {
        "Flower FedAvg": lambda seed: train_in_flower(seed, options.rounds),
        "FedAvg here": lambda seed: train_here(seed, options.rounds, "fedavg"),
        "FedAvg here, ring masks": lambda seed: train_here(seed, options.rounds, "masks"),
    }
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    train_here(0, 1, "masks")
    for seed in range(options.seeds):
        for name, train in sides.items():
            outcomes[name].append(train(seed))
    sys.stdout.write("| | accuracy, seed by seed | seconds (median) | MB up | MB down |\n|---|---|---:|---:|---:|\n")
    for name, found in outcomes.items():
        accuracies = ", ".join(f"{100 * one.accuracy:.1f}" for one in found)
        seconds = statistics.median(one.seconds for one in found)
        sys.stdout.write(
            f"| {name} | {accuracies} | {seconds:.1f} | {found[0].megabytes_up:.1f} | {found[0].megabytes_down:.1f} |\n"
        )
    return 0


if __name__ == "__main__":
    import flower_fedavg  # by its name: actors of Flower find what a module has, and not what a script has

    sys.exit(flower_fedavg.main())
