"""`bilateral doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import torch
from rich.markup import escape
from rich.table import Table

from bilateral.cli.console import out, print_json
from bilateral.cli.options import DataDir, Json
from bilateral.data.registry import DATA_DIR_VARIABLE
from bilateral.protocols.share.ring.cpu_features import VARIABLE, Kernel, choose, supports
from bilateral.version import __version__

State = Literal["ok", "note", "missing"]
_LIBRARIES: Final = (
    "torch",
    "numpy",
    "numba",
    "scikit-learn",
    "cryptography",
    "pydantic",
    "safetensors",
    "dp-accounting",
)
_EXTRAS: Final = {
    "flare": ("nvflare", "psutil", "pyyaml"),
    "data": ("pyarrow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "tracking": ("tensorboard", "mlflow-skinny", "wandb"),
    "baselines": ("gmpy2", "tenseal", "pynacl"),
}
_SPACE: Final = 2e9
_MEMORY: Final = 2e9
_SIGNS: Final[dict[State, str]] = {"ok": "[green]✓[/]", "note": "[yellow]![/]", "missing": "[red]✗[/]"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `remedy`: what to do, where there is something to do."""

    name: str
    state: State
    found: str
    remedy: str = ""


def doctor_command(data_dir: DataDir = None, json: Json = False) -> None:
    """Look at this machine: versions, processor, kernels, memory, data, NVIDIA FLARE, space; and say what to do.

    Exit code 1 if something is missing that `bilateral run` needs.

    Examples:

      bilateral doctor

      bilateral doctor --data-dir data --json
    """
    found = [*checks(data_dir)]
    missing = [one for one in found if one.state == "missing"]
    if json:
        print_json({"ready": not missing, "checks": [asdict(one) for one in found]})
    else:
        table = Table(show_header=False, box=None, pad_edge=False)
        for one in found:
            table.add_row(
                _SIGNS[one.state],
                escape(one.name),
                escape(one.found) + (f"\n[dim]{escape(one.remedy)}[/]" if one.remedy else ""),
            )
        out.print(table)
        out.print("\nReady: try `bilateral run`." if not missing else "\nNot ready: see what is marked ✗.")
    if missing:
        sys.exit(1)


def checks(data_dir: Path | None) -> Iterator[Check]:
    """All of them, one after the other; none changes anything."""
    yield Check("bilateral", "ok", f"{__version__}, in {Path(__file__).resolve().parents[1]}")
    yield Check("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for library in _LIBRARIES:
        version = _version(library)
        remedy = "" if version else "Install the package anew: pip install bilateral"
        yield Check(library, "ok" if version else "missing", version or "not installed", remedy)
    yield from _processor()
    yield _memory()
    yield _devices()
    yield _data(data_dir)
    for extra, libraries in _EXTRAS.items():
        absent = [name for name in libraries if not _version(name)]
        said = ", ".join(f"{name} {_version(name)}" for name in libraries if name not in absent)
        remedy = f"Only if you want it: pip install 'bilateral[{extra}]'" if absent else ""
        yield Check(f"extra [{extra}]", "note" if absent else "ok", said or "not installed", remedy)
    yield _space()


def _processor() -> Iterator[Check]:
    cores, threads = _cores(), torch.get_num_threads()
    yield Check("processor", "ok", f"{cores} core{'s' if cores != 1 else ''} for this process, torch uses {threads}")
    kernels = [name for name in get_args(Kernel) if supports(name)]
    asked = os.environ.get(VARIABLE)
    said = f"ring products by {choose() if asked in (None, *kernels) else kernels[0]}; there are {', '.join(kernels)}"
    if asked is not None and asked not in ("auto", *kernels):
        yield Check("kernels", "missing", f"{VARIABLE}={asked} is not for this processor", f"Unset {VARIABLE}.")
    else:
        yield Check("kernels", "ok", said)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> Check:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return Check("memory", "ok", "unknown on this system")
    low = free < _MEMORY
    remedy = "Small networks will do; a ResNet-18 with masks wants some 2 GB." if low else ""
    return Check("memory", "note" if low else "ok", f"{free / 1e9:.1f} GB free", remedy)


def _devices() -> Check:
    if torch.cuda.is_available():
        return Check("accelerator", "ok", f"CUDA: {torch.cuda.get_device_name(0)}")
    if torch.backends.mps.is_available():
        return Check("accelerator", "ok", "MPS")
    return Check("accelerator", "ok", "none: everything runs on the processor")


def _data(data_dir: Path | None) -> Check:
    if data_dir is None:
        text = "no folder named; digits, breast-cancer, wine and diabetes come with scikit-learn"
        return Check("data", "ok", text, f"For others: --data-dir, or the variable {DATA_DIR_VARIABLE}.")
    if not data_dir.is_dir():
        return Check("data", "note", f"{data_dir} is no folder", f"Correct --data-dir or {DATA_DIR_VARIABLE}.")
    files = sum(1 for path in data_dir.iterdir() if path.is_file())
    return Check("data", "ok", f"{data_dir}, {files} file{'s' if files != 1 else ''}")


def _space() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    writable = os.access(Path.cwd(), os.W_OK)
    if not writable:
        return Check("this folder", "note", "not writable", "Name a folder of yours with --output.")
    low = free < _SPACE
    return Check(
        "this folder", "note" if low else "ok", f"{free / 1e9:.1f} GB free", "Runs keep checkpoints." if low else ""
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
