"""One secret-shared prediction by CrypTen 0.4.1: two parties as processes on the loopback, and a dealer if asked for.

Run by the interpreter of CrypTen's own environment (see benchmarks/README.md). Party 0 owns the model, party 1 the
image. Weights are shared before the clock starts. A timed batch is: share the input, evaluate, reveal the logits;
correlated randomness is made as it is needed, so it is always counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

import torch

from prediction_task import (
    Floats,
    Layer,
    Observation,
    Task,
    answer,
    arguments,
    chosen_task,
    collect,
    evaluate,
    free_ports,
    peak_memory_bytes,
    print_answer,
    received_bytes,
)

FIRST_PARTY: Final = "first-party"
DEALER: Final = "dealer"
_PROVIDERS: Final = {FIRST_PARTY: "TFP", DEALER: "TTP"}
SYSTEMS: Final = {FIRST_PARTY: "crypten", DEALER: "crypten-dealer"}
MODEL_OWNER: Final = 0
DATA_OWNER: Final = 1
_DEALER_RANK: Final = 2

Measure = Callable[[Any, Any, int], Any]
"""What a party does with CrypTen, its task and the number of timed repeats: a module's function, for it is pickled."""


def import_crypten() -> Any:
    """CrypTen, on a torch that no longer has the ONNX registry which it imports and which we do not use."""
    name = "torch.onnx._internal.registration"
    stand_in = types.ModuleType(name)
    stand_in.registry = None  # type: ignore[attr-defined]
    sys.modules.setdefault(name, stand_in)
    import crypten  # type: ignore[import-not-found]  # noqa: PLC0415
    import crypten.communicator  # type: ignore[import-not-found]  # noqa: PLC0415
    import crypten.mpc.provider.ttp_provider  # type: ignore[import-not-found]  # noqa: PLC0415

    return crypten


def main() -> None:
    parser = arguments("A secret-shared prediction by CrypTen.")
    add_provider(parser)
    options = parser.parse_args()
    task = chosen_task(options)
    observed: list[Observation] = run_parties(measure, options.provider, options.repeats, task)
    found = answer(SYSTEMS[options.provider], options.model, task, observed)
    if options.provider == DEALER:
        found["parties"] += 1
    print_answer(found, options.json)


def add_provider(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=tuple(_PROVIDERS), default=FIRST_PARTY, help="who deals the triples")


def run_parties(act: Measure, provider: str, repeats: int, task: Any) -> list[Any]:
    """A process a party, and one for the dealer; what the two parties saw."""
    context = multiprocessing.get_context("spawn")
    (port,) = free_ports(1)
    dealer = context.Process(target=deal, args=(port,), daemon=True)
    if provider == DEALER:
        dealer.start()
    pipes = []
    for rank in (MODEL_OWNER, DATA_OWNER):
        receiver, sender = context.Pipe(duplex=False)
        arguments_of_party = (act, rank, provider, port, repeats, task, sender)
        context.Process(target=run_party, args=arguments_of_party, daemon=True).start()
        sender.close()  # so that a party that dies ends the wait for it
        pipes.append(receiver)
    return collect(pipes, "CrypTen")


def run_party(act: Measure, rank: int, provider: str, port: int, repeats: int, task: Any, pipe: Connection) -> None:
    """One party: the same program in both, as CrypTen wants it."""
    crypten = set_up(rank, provider, port)
    crypten.init()
    pipe.send(act(crypten, task, repeats))
    crypten.uninit()


def deal(port: int) -> None:
    """The dealer: answers requests of party 0 until that says that it is done."""
    crypten = set_up(_DEALER_RANK, DEALER, port)
    crypten.mpc.provider.ttp_provider.TTPServer()


def set_up(rank: int, provider: str, port: int) -> Any:
    """CrypTen, told in its environment variables who this process is. Parties share the cores."""
    os.environ["DISTRIBUTED_BACKEND"] = "gloo"
    os.environ["RENDEZVOUS"] = f"tcp://127.0.0.1:{port}"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["WORLD_SIZE"] = "2"  # the dealer is counted apart
    os.environ["RANK"] = str(rank)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    crypten = import_crypten()
    crypten.cfg.mpc.provider = _PROVIDERS[provider]
    return crypten


def measure(crypten: Any, task: Task, repeats: int) -> Observation:
    """One batch that counts bytes and rounds and warms up, then the timed ones."""
    communicator = crypten.communicator.get()
    rules = layer_rules(shared_parameters(crypten, task.parameters))
    image = torch.from_numpy(task.inputs)  # CrypTen uses the value at the owner only, and the shape at both

    def predict() -> torch.Tensor:
        with crypten.no_grad():
            shared = crypten.cryptensor(image, src=DATA_OWNER)
            logits: torch.Tensor = evaluate(task.layers, shared, rules).get_plain_text()
        return logits

    communicator.barrier()
    before = received_bytes()
    crypten.cfg.communicator.verbose = True
    communicator.reset_communication_stats()
    predict()
    crypten.cfg.communicator.verbose = False
    received = received_bytes() - before
    seconds = []
    for _ in range(repeats):
        communicator.barrier()
        started = time.perf_counter()
        logits = predict()
        seconds.append(time.perf_counter() - started)
    return Observation(tuple(seconds), received, peak_memory_bytes(), logits.numpy(), communicator.comm_rounds)


def shared_parameters(crypten: Any, parameters: Mapping[str, Floats], requires_grad: bool = False) -> dict[str, Any]:
    """The weights, shared by party 0."""
    return {
        name: crypten.cryptensor(torch.from_numpy(value), src=MODEL_OWNER, requires_grad=requires_grad)
        for name, value in parameters.items()
    }


def layer_rules(parameters: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """CrypTen's own operations for every kind of layer, on shared weights."""

    def conv(layer: Layer, x: Any) -> Any:
        y = x.conv2d(parameters[layer.weight], stride=layer.stride, padding=layer.padding)
        return y + parameters[layer.bias].view(1, -1, 1, 1)

    def linear(layer: Layer, x: Any) -> Any:
        return x.matmul(parameters[layer.weight].t()) + parameters[layer.bias]

    return {
        "conv": conv,
        "linear": linear,
        "relu": lambda _, x: x.relu(),
        "max_pool": lambda layer, x: x.max_pool2d(layer.size),
        "average_pool": lambda _, x: x.avg_pool2d(x.size()[-1]),
        "flatten": lambda _, x: x.flatten(start_dim=1),
        "add": lambda _, x, y: x + y,
    }


if __name__ == "__main__":
    main()
