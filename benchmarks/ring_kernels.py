"""How fast products modulo 2^64 are by each kernel that this machine has, and what the machine could do at most.

    python benchmarks/ring_kernels.py [--paths vector avx512 amx torch] [--repeats 20] [--only 1024x576x64 ...]

One thread, processor time. The kernels take turns, so that a drifting clock and other jobs hit all of them: GMAC/s is
the best of the repetitions, the ratio to the first path is taken repetition by repetition (median, p10 to p90). Weights
are full words, or fixed point below 2^22. Then the limits (copying memory; 64-bit products in registers; AMX's products
of tiles in registers), and the parts of the sealed comparison in numbers a second. Pin it: `taskset -c 0`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from bilateral.protocols.share.gates import planes
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring import cpu_features
from bilateral.protocols.share.ring.streams import Stream
from torch import Tensor

Calls = dict[str, Callable[[], object]]
PATHS: Final[tuple[ring.Path, ...]] = ("vector", "avx512", "amx", "torch")
BITS: Final = (64, 23)
WARM_UP: Final = 2
PATIENCE: Final = 260
"""Samples after which a convolution is prepared for its fast algorithm."""
NUMBERS: Final = 1 << 16
WORD_PLANES: Final = 64
COPIED_WORDS: Final = 1 << 24
LOOPS: Final = 1 << 18
SUMS: Final = 16
"""Vectors of 64-bit sums that are added to in turn: as many as hide the latency of a product."""


class Shape(NamedTuple):
    name: str
    x: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def products(self) -> int:
        outputs = self.x[0] if len(self.x) == 2 else self.x[0] * self.x[2] * self.x[3]
        return outputs * int(np.prod(self.weight))


def _conv(inputs: int, outputs: int, side: int, batch: int) -> Shape:
    name = f"conv {inputs}->{outputs}, {side}x{side}, b={batch}"
    return Shape(name, (batch, inputs, side, side), (outputs, inputs, 3, 3))


SHAPES: Final = (
    Shape("1024x576x64", (1024, 576), (64, 576)),
    Shape("4096x576x64", (4096, 576), (64, 576)),
    Shape("1024x2304x256", (1024, 2304), (256, 2304)),
    _conv(64, 64, 32, 1),
    _conv(128, 128, 16, 1),
    _conv(256, 256, 8, 1),
    _conv(64, 64, 32, 32),
)


def words(shape: Sequence[int], bits: int = 64) -> Tensor:
    """Uniform numbers of so many bits, sign included."""
    found = torch.randint(-(2**63), 2**63 - 1, tuple(shape))
    return found if bits == 64 else (found >> (64 - bits)).clamp(min=1 - 2 ** (bits - 1))


def maps_of(shape: Shape, bits: int, paths: Sequence[ring.Path]) -> Calls:
    """The shape's product by every path, warmed up; they must agree."""
    x, weight = words(shape.x), words(shape.weight, bits)
    maps: dict[ring.Path, ring.LinearMap] = {}
    for path in paths:
        if weight.dim() == 2:
            maps[path] = ring.prepare_linear(weight, weight_bits=bits, path=path)
        else:
            maps[path] = ring.prepare_conv2d(weight, stride=(1, 1), padding=(1, 1), weight_bits=bits, path=path)
    expected = maps[paths[0]](x)
    for path, product in maps.items():
        if not torch.equal(product(x), expected):
            raise SystemExit(f"{shape.name}: path {path} differs from {paths[0]}")
        uses = WARM_UP if path in ("torch", "amx") or x.dim() == 2 else max(WARM_UP, PATIENCE // x.shape[0])
        for _ in range(uses):
            product(x)
    return {path: partial(product, x) for path, product in maps.items()}


def in_turn(calls: Calls, repeats: int) -> dict[str, list[float]]:
    """Processor seconds of each, by repetition."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.process_time()
            call()
            taken[name].append(time.process_time() - started)
    return taken


def ratios(base: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """How many times as fast the other is, by repetition: median, p10, p90."""
    found = sorted(a / max(b, 1e-9) for a, b in zip(base, other, strict=True))
    last = len(found) - 1
    return statistics.median(found), found[round(0.1 * last)], found[round(0.9 * last)]


def lines_of(shape: Shape, bits: int, paths: Sequence[ring.Path], repeats: int) -> Iterator[str]:
    taken = in_turn(maps_of(shape, bits, paths), repeats)
    for path, seconds in taken.items():
        speed = shape.products / max(min(seconds), 1e-9) / 1e9
        middle, low, high = ratios(taken[paths[0]], seconds)
        kind = "full words" if bits == 64 else f"{bits - 1} bits"
        yield f"{shape.name:24} {kind:10} {path:7} {speed:8.2f} GMAC/s   x{middle:5.2f} ({low:.2f} to {high:.2f})"


# --- limits ---


def _compiled_loop(body: Callable[[Any], None], *, tiles: bool = False) -> Callable[[int], object]:
    """A function that runs `body`, code for LLVM, so many times. Only for machines that have its instructions."""
    from numba import njit, types  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    tools: Any = cgutils

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        with tools.for_range(builder, arguments[0]):
            body(builder)
        return arguments[0]

    loop: Any = intrinsic(lambda _typing, _count: (types.int64(types.int64), emit))
    if tiles:
        from bilateral.protocols.share.ring import amx_kernels  # noqa: PLC0415

        configure, release = amx_kernels.configure, amx_kernels.release

        def with_tiles(count: Any) -> Any:
            configure()
            found = loop(count)
            release()
            return found

        found: Callable[[int], object] = njit(with_tiles)
        return found

    def plain(count: Any) -> Any:
        return loop(count)

    made: Callable[[int], object] = njit(plain)
    return made


def tile_products() -> float:
    """Products of tiles a second, of tiles that are loaded already: 16 x 64 x 16 products of digits each."""
    from bilateral.protocols.share.ring import amx_kernels  # noqa: PLC0415

    def body(builder: Any) -> None:
        for tile in range(4):
            amx_kernels.multiply_tiles(builder, tile, 5 + tile % 3, 4)

    loop = _compiled_loop(body, tiles=True)
    loop(1)
    return 4 * LOOPS / best(lambda: loop(LOOPS))


def word_products() -> float:
    """64-bit products and sums a second, in registers."""
    from llvmlite import ir  # type: ignore[import-untyped]  # noqa: PLC0415

    octet = ir.VectorType(ir.IntType(64), 8)
    unknown = ir.InlineAsm(ir.FunctionType(octet, [octet]), "", "=v,0", side_effect=True)
    step = ir.Constant(octet, [0x9E3779B97F4A7C15] * 8)

    def body(builder: Any) -> None:
        sums = [builder.call(unknown, [step]) for _ in range(SUMS)]
        for i in range(SUMS):  # each is made of all before: nothing can be left out
            builder.call(unknown, [builder.add(builder.mul(sums[i], sums[(i + 5) % SUMS]), sums[(i + 3) % SUMS])])

    loop = _compiled_loop(body)
    loop(1)
    return 8 * SUMS * LOOPS / best(lambda: loop(LOOPS))


def best(call: Callable[[], object], repeats: int = 12) -> float:
    """Processor seconds of the fastest of some calls."""
    call()
    return max(min(in_turn({"it": call}, repeats)["it"]), 1e-9)


def limits() -> Iterator[str]:
    source, target = torch.zeros(COPIED_WORDS, dtype=torch.int64), torch.zeros(COPIED_WORDS, dtype=torch.int64)
    seconds = best(lambda: target.copy_(source))
    yield f"copying memory: {16 * COPIED_WORDS / seconds / 1e9:.1f} GB/s read and written"
    if cpu_features.supports("avx512"):
        yield f"vpmullq and vpaddq in registers: {word_products() / 1e9:.1f} GMAC/s of words"
    if cpu_features.supports("amx"):
        speed = tile_products()
        digits = speed * 16 * 64 * 16
        yield (
            f"TDPBSSD in registers: {2 * digits / 1e12:.2f} int8 TOPS, {digits / 36e9:.1f} GMAC/s of full words, "
            f"{digits / 26e9:.1f} by weights of 4 digits, {digits / 21e9:.1f} of 3"
        )


# --- the sealed comparison ---


def comparison_parts() -> Calls:
    """Each works on NUMBERS numbers of 64 bits."""
    count = planes.num_words(NUMBERS)
    x, beta, r_beta, r = (words((NUMBERS,)) for _ in range(4))
    bits, tables = words((WORD_PLANES, count)), words((WORD_PLANES // planes.DIGIT_BITS * planes.ENTRIES, count))
    work = tables.clone()
    stream = Stream.of(bytes(32), "comparison", 0, 1)
    return {
        "to_planes": lambda: planes.to_planes(x, WORD_PLANES),
        "thermometers": lambda: planes.thermometers(bits, work, out=work),
        "look_up": lambda: planes.look_up(tables, bits, True),
        "select": lambda: planes.select(x, bits[0], beta, r_beta, r, True, out=r_beta),
        "a word of AES": lambda: stream.words(NUMBERS),
    }


def comparisons(repeats: int) -> Iterator[str]:
    calls = comparison_parts()
    for call in calls.values():
        call()
    for name, seconds in in_turn(calls, repeats).items():
        speed = NUMBERS / max(min(seconds), 1e-9)
        extra = f"   {8 * speed / 1e9:.2f} GB/s" if name == "a word of AES" else ""
        slowest = NUMBERS / max(*seconds, 1e-9)
        yield f"{name:14} {speed / 1e6:8.1f} million numbers a second and core (slowest {slowest / 1e6:.1f}){extra}"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS[:3]))
    parser.add_argument("--only", nargs="+", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    usable = [path for path in options.paths if path in ("torch", "vector") or cpu_features.supports(path)]
    for missing in sorted(set(options.paths) - set(usable)):
        say(f"{missing}: not on this machine")
    for shape in SHAPES:
        if options.only is None or shape.name in options.only:
            for bits in BITS:
                for line in lines_of(shape, bits, usable, options.repeats):
                    say(line)
    for line in (*limits(), *comparisons(options.repeats)):
        say(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
