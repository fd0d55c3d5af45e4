"""One training step, everything secret, by CrypTen 0.4.1: two processes on the loopback, and a dealer if asked for.

Run by the interpreter of CrypTen's own environment (see benchmarks/README.md). Party 0 owns the model, party 1 the
batch and its targets. Weights are shared before the clock starts. A timed step is: share the batch, forward, the loss's
gradient at the outputs, CrypTen's own autograd back to every parameter. The gradients stay shared (CrypTen would update
shared weights with them); they are opened after the clock has stopped. The loss's value is not computed, as with the
`skip_forward` of CrypTen's own cross entropy.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from crypten_prediction import (
    DATA_OWNER,
    DEALER,
    SYSTEMS,
    add_provider,
    layer_rules,
    run_parties,
    shared_parameters,
)
from prediction_task import evaluate, peak_memory_bytes, print_answer, received_bytes
from step_task import Gradients, StepObservation, StepTask, chosen_step, step_answer, step_arguments


def main() -> None:
    parser = step_arguments("A training step, everything secret, by CrypTen.")
    add_provider(parser)
    options = parser.parse_args()
    task = chosen_step(options)
    observed: list[tuple[StepObservation, Gradients, Gradients]] = run_parties(
        measure_steps, options.provider, options.steps, task
    )
    _, mean, summed = observed[0]
    parties = [observation for observation, *_ in observed]
    found = step_answer(SYSTEMS[options.provider], options.model, task, parties, mean, summed)
    if options.provider == DEALER:
        found["parties"] += 1
    print_answer(found, options.json)


def measure_steps(crypten: Any, task: StepTask, steps: int) -> tuple[StepObservation, Gradients, Gradients]:
    """One step with the summed loss that counts bytes and rounds and warms up, then the timed ones with its mean."""
    communicator = crypten.communicator.get()
    parameters = shared_parameters(crypten, task.parameters, requires_grad=True)
    communicator.barrier()
    before = received_bytes()
    crypten.cfg.communicator.verbose = True
    communicator.reset_communication_stats()
    step(crypten, task, parameters, divisor=1)
    crypten.cfg.communicator.verbose = False
    received = received_bytes() - before
    rounds = communicator.comm_rounds
    summed = opened(parameters)
    seconds = []
    for _ in range(steps):
        communicator.barrier()
        started = time.perf_counter()
        step(crypten, task, parameters, divisor=task.mean_over)
        seconds.append(time.perf_counter() - started)
    observation = StepObservation(tuple(seconds), received, peak_memory_bytes(), rounds)
    return observation, opened(parameters), summed


def step(crypten: Any, task: StepTask, parameters: dict[str, Any], divisor: int) -> None:
    """Every parameter's `grad` anew, as shares."""
    for parameter in parameters.values():
        parameter.grad = None
    inputs = crypten.cryptensor(torch.from_numpy(task.inputs), src=DATA_OWNER)
    targets = crypten.cryptensor(torch.from_numpy(task.targets), src=DATA_OWNER)
    outputs = evaluate(task.layers, inputs, layer_rules(parameters))
    with crypten.no_grad():
        delta = outputs.softmax(1) - targets if task.loss == "ce" else (outputs - targets) * 2
        if divisor > 1:
            delta = delta / divisor
    outputs.backward(delta)


def opened(parameters: dict[str, Any]) -> Gradients:
    return {name: parameter.grad.get_plain_text().numpy() for name, parameter in parameters.items()}


if __name__ == "__main__":
    main()
