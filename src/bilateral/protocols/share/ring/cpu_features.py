"""Which instructions the ring's products may use: what the processor has, and what the operating system allows.

Nothing is asked before the first product is prepared, and whatever cannot be found out counts as missing.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Final, Literal, get_args

from bilateral.errors import PlanError

Kernel = Literal["amx", "avx512", "vector"]
VARIABLE: Final = "BILATERAL_RING_KERNEL"
AUTO: Final = "auto"
_NEEDS: Final[dict[Kernel, frozenset[str]]] = {
    "amx": frozenset(("amx-tile", "amx-int8", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi")),
    "avx512": frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "vector": frozenset(),
}
_ARCH_PRCTL: Final = 158  # the number of the system call on x86-64
_GET_PERMISSION, _REQUEST_PERMISSION = 0x1022, 0x1023
_TILE_DATA: Final = 18  # the state component that holds the tiles


@cache
def compiled_features() -> frozenset[str]:
    """What the machine code that numba makes in this process may use, in LLVM's names.

    LLVM asks the processor (CPUID) and whether the operating system saves the registers (XGETBV); `NUMBA_CPU_NAME` and
    `NUMBA_CPU_FEATURES` may say less. numba keeps machine code on disk under exactly these features, so that no other
    machine with the same home directory is given code that it cannot run.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    from llvmlite import binding  # type: ignore[import-untyped]  # noqa: PLC0415
    from numba.core.registry import cpu_target  # noqa: PLC0415

    features = cpu_target.target_context.codegen().magic_tuple()[2]
    named = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    return frozenset(feature for feature, has in binding.get_host_cpu_features().items() if has and feature in named)


@cache
def tiles_are_permitted() -> bool:
    """Asks Linux for the right to use AMX's tiles, for all threads of this process. Children inherit it."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call.restype = ctypes.c_long
    if system_call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA)):
        return False
    granted = ctypes.c_uint64(0)
    asked = system_call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_GET_PERMISSION), ctypes.byref(granted))
    return asked == 0 and bool(granted.value >> _TILE_DATA & 1)


def supports(kernel: Kernel) -> bool:
    """Whether this process can run it."""
    try:
        has_instructions = _NEEDS[kernel] <= compiled_features()
        return has_instructions and (kernel != "amx" or tiles_are_permitted())
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError):  # another numba, another C library
        return kernel == "vector"


def multiplies_words_at_once() -> bool:
    """Whether a product of 64-bit words in vectors (vpmullq) is one step, as AMD has it, and not three of them.

    By a feature that AMD's processors have and Intel's have not; it decides what is faster and nothing else.
    """
    return supports("avx512") and "sse4a" in compiled_features()


@cache
def _fastest() -> Kernel:
    return next(kernel for kernel in get_args(Kernel) if supports(kernel))


def choose(asked: str | None = None) -> Kernel:
    """The fastest that this process can run, or the one `asked` for: by argument, or by `BILATERAL_RING_KERNEL`."""
    asked = asked or os.environ.get(VARIABLE) or AUTO
    kernels: tuple[Kernel, ...] = get_args(Kernel)
    if asked == AUTO:
        return _fastest()
    for kernel in kernels:
        if kernel == asked:
            if supports(kernel):
                return kernel
            raise PlanError(
                f"Expected a processor and a system for ring products by {kernel!r}, but they are not here.",
                remedy=f"Leave {VARIABLE} unset, or set it to {AUTO!r}.",
            )
    raise PlanError(f"Expected one of {AUTO}, {', '.join(kernels)} as {VARIABLE}, got {asked!r}.")
