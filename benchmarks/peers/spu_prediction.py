"""One secret-shared prediction by SPU 0.9.5: SEMI2K with two or ABY3 with three parties, as processes on the loopback.

Run by the interpreter of SPU's own environment (see benchmarks/README.md). This process compiles the network once and
gives every party its shares of weights and input. A timed batch is one run of the compiled program in all parties,
correlated randomness included where the protocol has any; sharing the input and joining the logits' shares (24 kB and
some hundred bytes an image and party) are outside.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

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

PARTIES: Final = {"semi2k": 2, "aby3": 3}
_TIMEOUT_MS: Final = 30 * 60 * 1000
_MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
_OUTPUT: Final = "logits"


def main() -> None:
    parser = arguments("A secret-shared prediction by SPU.")
    parser.add_argument("--protocol", choices=tuple(PARTIES), default="semi2k")
    options = parser.parse_args()
    task = chosen_task(options)
    observed = run_parties(options.protocol, options.repeats, task)
    print_answer(answer(f"spu-{options.protocol}", options.model, task, observed), options.json)


def run_parties(protocol: str, repeats: int, task: Task) -> list[Observation]:
    """Compile, share, start a process a party; every observation gets the logits that all shares together give."""
    import spu  # type: ignore[import-not-found]  # noqa: PLC0415

    keep_quiet()
    io = spu.Io(PARTIES[protocol], runtime_config(protocol))
    values = {"input": channels_last(task.inputs), **{name: prepared(value) for name, value in task.parameters.items()}}
    program, input_names = compile_network(task, values)
    shares = {name: io.make_shares(values[name], spu.Visibility.VIS_SECRET) for name in input_names}
    ports = free_ports(PARTIES[protocol])
    context = multiprocessing.get_context("spawn")
    pipes = []
    for rank in range(PARTIES[protocol]):
        ours, theirs = context.Pipe()
        context.Process(target=run_party, args=(protocol, rank, ports, repeats, theirs), daemon=True).start()
        theirs.close()  # so that a party that dies ends the wait for it
        ours.send((program, input_names, [shares[name][rank] for name in input_names]))
        pipes.append(ours)
    answers = collect(pipes, "SPU")
    logits = io.reconstruct([share for *_, share in answers])
    return [Observation(seconds, received, memory, logits) for seconds, received, memory, _ in answers]


def run_party(protocol: str, rank: int, ports: list[int], repeats: int, pipe: Connection) -> None:
    """One party: a batch that counts bytes and warms up, then the timed ones."""
    import spu  # noqa: PLC0415
    from spu import libspu  # noqa: PLC0415

    keep_quiet()
    code, input_names, shares = pipe.recv()
    program = libspu.Executable(name="network", input_names=input_names, output_names=[_OUTPUT], code=code)
    link = libspu.link.create_brpc(link_description(ports), rank)
    runtime = spu.Runtime(link, runtime_config(protocol))
    for name, share in zip(input_names, shares, strict=True):
        runtime.set_var(name, share)
    link.barrier()
    before = received_bytes()
    runtime.run(program)
    received = received_bytes() - before
    seconds = []
    for _ in range(repeats):
        link.barrier()
        started = time.perf_counter()
        runtime.run(program)
        seconds.append(time.perf_counter() - started)
    pipe.send((tuple(seconds), received, peak_memory_bytes(), runtime.get_var(_OUTPUT)))
    link.barrier()  # nobody closes its connections while another still waits
    link.stop_link()


def keep_quiet() -> None:
    """SPU greets on standard output, where the answer belongs, or else in a file. Its errors are exceptions."""
    from spu import libspu  # noqa: PLC0415

    options = libspu.logging.LogOptions()
    options.enable_console_logger = False
    options.system_log_path = os.devnull
    libspu.logging.setup_logging(options)


def runtime_config(protocol: str) -> Any:
    """SPU's defaults in the ring modulo 2^64: 18 fractional bits, and self-dealt triples for SEMI2K."""
    from spu import libspu  # noqa: PLC0415

    kind = {"semi2k": libspu.ProtocolKind.SEMI2K, "aby3": libspu.ProtocolKind.ABY3}[protocol]
    return libspu.RuntimeConfig(protocol=kind, field=libspu.FieldType.FM64)


def link_description(ports: list[int]) -> Any:
    """TCP on the loopback by SPU's own transport; big messages in few pieces, and patience with big batches."""
    from spu import libspu  # noqa: PLC0415

    description = libspu.link.Desc()
    description.recv_timeout_ms = _TIMEOUT_MS
    description.http_timeout_ms = _TIMEOUT_MS
    description.http_max_payload_size = _MAX_MESSAGE_BYTES
    for rank, port in enumerate(ports):
        description.add_party(f"party-{rank}", f"127.0.0.1:{port}")
    return description


def channels_last(images: Floats) -> Floats:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def prepared(parameter: Floats) -> Floats:
    """Kernels as (height, width, in, out), matrices as (in, out): the layouts that XLA's CPU path wants."""
    order = {4: (2, 3, 1, 0), 2: (1, 0)}.get(parameter.ndim, (0,))
    return np.ascontiguousarray(parameter.transpose(order))


def compile_network(task: Task, values: Mapping[str, Floats]) -> tuple[bytes, list[str]]:
    """SPU's program for the network, and the names of its inputs in their order; all inputs are secret."""
    from spu import libspu  # noqa: PLC0415
    from spu.utils import frontend  # type: ignore[import-not-found]  # noqa: PLC0415

    names = list(values)

    def network(*arrays: Any) -> Any:
        given = dict(zip(names, arrays, strict=True))
        return evaluate(task.layers, given["input"], layer_rules(given))

    executable, _ = frontend.compile(
        frontend.Kind.JAX,
        network,
        [values[name] for name in names],
        {},
        names,
        [libspu.Visibility.VIS_SECRET] * len(names),
        lambda _: [_OUTPUT],
    )
    return executable.code, names


def layer_rules(parameters: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """The layers in jax, images as (batch, height, width, channels)."""
    import jax.numpy as jnp  # type: ignore[import-not-found]  # noqa: PLC0415
    from jax import lax  # noqa: PLC0415

    def conv(layer: Layer, x: Any) -> Any:
        padding = [(layer.padding, layer.padding)] * 2
        strides = (layer.stride, layer.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, parameters[layer.weight], strides, padding, dimension_numbers=layout)
        return y + parameters[layer.bias]

    def max_pool(layer: Layer, x: Any) -> Any:
        window = (1, layer.size, layer.size, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")

    return {
        "conv": conv,
        "linear": lambda layer, x: x @ parameters[layer.weight] + parameters[layer.bias],
        "relu": lambda _, x: jnp.maximum(x, 0),
        "max_pool": max_pool,
        "average_pool": lambda _, x: x.mean(axis=(1, 2), keepdims=True),
        "flatten": lambda _, x: (x.transpose(0, 3, 1, 2) if x.ndim == 4 else x).reshape(x.shape[0], -1),
        "add": lambda _, x, y: x + y,
    }


if __name__ == "__main__":
    main()
