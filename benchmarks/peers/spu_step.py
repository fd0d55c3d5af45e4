"""One training step, everything secret, by SPU 0.9.5: SEMI2K with two or ABY3 with three parties, on the loopback.

Run by the interpreter of SPU's own environment (see benchmarks/README.md). This process compiles forward and backward
(jax's vector-Jacobian product at the loss's gradient; the loss's value is not computed) once for the summed loss and
once for its mean, and gives every party its shares of weights, batch and targets. A timed step is one run of the second
program in all parties, correlated randomness included where the protocol has any; sharing the batch is outside, and the
gradients stay shared: they are joined after the clock has stopped.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from prediction_task import (
    Floats,
    collect,
    evaluate,
    free_ports,
    peak_memory_bytes,
    print_answer,
    received_bytes,
)
from spu_prediction import (
    PARTIES,
    channels_last,
    keep_quiet,
    layer_rules,
    link_description,
    prepared,
    runtime_config,
)
from step_task import StepObservation, StepTask, chosen_step, step_answer, step_arguments

_INPUTS: Final = "inputs"
_TARGETS: Final = "targets"

Program = tuple[bytes, Sequence[str], Sequence[str]]
"""Code, names of the inputs and of the outputs."""


def main() -> None:
    parser = step_arguments("A training step, everything secret, by SPU.")
    parser.add_argument("--protocol", choices=tuple(PARTIES), default="semi2k")
    options = parser.parse_args()
    task = chosen_step(options)
    parties, mean, summed = run_step_parties(options.protocol, options.steps, task)
    print_answer(step_answer(f"spu-{options.protocol}", options.model, task, parties, mean, summed), options.json)


def run_step_parties(
    protocol: str, steps: int, task: StepTask
) -> tuple[list[StepObservation], dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Compile, share, start a process a party; their observations, and the gradients of the mean and of the sum."""
    import spu  # type: ignore[import-not-found]  # noqa: PLC0415

    keep_quiet()
    io = spu.Io(PARTIES[protocol], runtime_config(protocol))
    values = {
        _INPUTS: channels_last(task.inputs) if task.inputs.ndim == 4 else task.inputs,
        _TARGETS: task.targets,
        **{name: prepared(value) for name, value in task.parameters.items()},
    }
    programs = [compile_step(task, values, divisor) for divisor in (1, task.mean_over)]
    shares = {name: io.make_shares(value, spu.Visibility.VIS_SECRET) for name, value in values.items()}
    ports = free_ports(PARTIES[protocol])
    context = multiprocessing.get_context("spawn")
    pipes = []
    for rank in range(PARTIES[protocol]):
        ours, theirs = context.Pipe()
        context.Process(target=run_step_party, args=(protocol, rank, ports, steps, theirs), daemon=True).start()
        theirs.close()  # so that a party that dies ends the wait for it
        ours.send((programs, {name: share[rank] for name, share in shares.items()}))
        pipes.append(ours)
    answers = collect(pipes, "SPU")
    names = list(task.parameters)
    mean, summed = (
        {name: restored(io.reconstruct([answer[place][i] for answer in answers])) for i, name in enumerate(names)}
        for place in (1, 2)
    )
    return [observation for observation, *_ in answers], mean, summed


def run_step_party(protocol: str, rank: int, ports: list[int], steps: int, pipe: Connection) -> None:
    """One party: a step with the summed loss that counts bytes and warms up, then the timed ones with its mean."""
    import spu  # noqa: PLC0415
    from spu import libspu  # noqa: PLC0415

    keep_quiet()
    (of_sum, of_mean), shares = pipe.recv()
    link = libspu.link.create_brpc(link_description(ports), rank)
    runtime = spu.Runtime(link, runtime_config(protocol))
    for name, share in shares.items():
        runtime.set_var(name, share)
    link.barrier()
    before = received_bytes()
    runtime.run(executable(of_sum))
    received = received_bytes() - before
    summed = [runtime.get_var(name) for name in of_sum[2]]
    program = executable(of_mean)
    seconds = []
    for _ in range(steps):
        link.barrier()
        started = time.perf_counter()
        runtime.run(program)
        seconds.append(time.perf_counter() - started)
    observation = StepObservation(tuple(seconds), received, peak_memory_bytes())
    pipe.send((observation, [runtime.get_var(name) for name in of_mean[2]], summed))
    link.barrier()  # nobody closes its connections while another still waits
    link.stop_link()


def executable(program: Program) -> Any:
    from spu import libspu  # noqa: PLC0415

    code, input_names, output_names = program
    return libspu.Executable(name="step", input_names=input_names, output_names=output_names, code=code)


def compile_step(task: StepTask, values: Mapping[str, Floats], divisor: int) -> Program:
    """SPU's program for all gradients of the loss divided by `divisor`; all inputs are secret."""
    import jax  # type: ignore[import-not-found]  # noqa: PLC0415
    from spu import libspu  # noqa: PLC0415
    from spu.utils import frontend  # type: ignore[import-not-found]  # noqa: PLC0415

    names = list(values)

    def step(*arrays: Any) -> Any:
        given = dict(zip(names, arrays, strict=True))
        inputs, targets = given.pop(_INPUTS), given.pop(_TARGETS)

        def network(parameters: Mapping[str, Any]) -> Any:
            return evaluate(task.layers, inputs, step_rules(parameters))

        outputs, pull_back = jax.vjp(network, given)
        delta = jax.nn.softmax(outputs) - targets if task.loss == "ce" else 2 * (outputs - targets)
        (gradients,) = pull_back(delta / divisor)
        return [gradients[name] for name in task.parameters]

    output_names = [f"gradient {name}" for name in task.parameters]
    compiled, _ = frontend.compile(
        frontend.Kind.JAX,
        step,
        [values[name] for name in names],
        {},
        names,
        [libspu.Visibility.VIS_SECRET] * len(names),
        lambda _: output_names,
    )
    return compiled.code, list(compiled.input_names), output_names


def step_rules(parameters: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """The layers of the prediction, with a ReLU whose backward uses the comparison of its forward.

    jax's rule for `maximum` would also compare for equality.
    """
    import jax.numpy as jnp  # type: ignore[import-not-found]  # noqa: PLC0415

    return {**layer_rules(parameters), "relu": lambda _, x: jnp.where(x > 0, x, 0)}


def restored(parameter: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The inverse of `prepared`."""
    order = {4: (3, 2, 0, 1), 2: (1, 0)}.get(parameter.ndim, (0,))
    return np.ascontiguousarray(parameter.transpose(order))


if __name__ == "__main__":
    main()
