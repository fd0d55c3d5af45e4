"""`bench large-uploads`: a masked round of ResNet-18, in every width of the ring: bytes, seconds, memory and exactness.

Uploads are gradients of ResNet-18 (11.2 million parameters) on a batch of each client's own. Two rounds a width: the
first has 64 bits, since nobody knows the range; the second one is told. The mean is compared with the one in float64:

- `error_to_uploads`    in the Euclidean norm, over the mean norm of the uploads: of what is averaged
- `relative_error`      the same over the norm of the mean itself, which is smaller where uploads cancel
- `largest_error_to_largest`  the value that is furthest off over the largest of the mean

The bits that clients draw (decision 9) move an upload by about 1e-7 of its norm, in every width. Every width is
measured in a process of its own, so that the most memory it had at once is its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from bilateral.bench.aggregation import errors_of_the_mean
from bilateral.bench.growth import peak_megabytes
from bilateral.bench.masked_rounds import Shape, make_parties, one_round
from bilateral.models.zoo import build_model
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.widths import WIDTHS, WidthSetting
from bilateral.protocols.messages import Aggregate, Upload

MODEL = "resnet-18"
INPUT_SHAPE = (3, 32, 32)
BATCH_SIZE = 4
CLIENTS = (5, 20)
SETTINGS: tuple[WidthSetting, ...] = (64, "auto", 48, 43, 40, 32)

_PROGRAM = "import sys; from bilateral.bench.large_uploads import measure_process; measure_process(*sys.argv[1:])"


def measure_large_uploads(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """One row per number of clients and width; `quick`: ResNet-8, five clients, 64 bits and auto."""
    model = "resnet-8" if quick else MODEL
    cases = [(n, width) for n in (CLIENTS[:1] if quick else CLIENTS) for width in (SETTINGS[:2] if quick else SETTINGS)]
    rows = []
    for number, (num_clients, width) in enumerate(cases):
        progress(number, len(cases), f"{num_clients} clients, width {width}")
        command = [sys.executable, "-c", _PROGRAM, model, str(num_clients), str(width)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    progress(len(cases), len(cases), "done")
    return rows


def measure(model: str, num_clients: int, width: WidthSetting) -> dict[str, Any]:
    """In this process."""
    gradients = _Gradients(model)
    parties = make_parties(num_clients, MaskSettings(width=width))
    names = sorted(parties.clients)
    before = peak_megabytes()
    shape = Shape(1, gradients.num_parameters)
    one_round(0, parties, gradients, shape)
    done = one_round(1, parties, gradients, shape)
    peak, clock = peak_megabytes(), done.clock
    up = clock.bytes_up[names[0]]
    expected, size = gradients.sum_of(names)
    off = float((done.total.terms - expected.terms).norm()) / expected.total_weight
    return {
        "model": model,
        "parameters": gradients.num_parameters,
        "clients": num_clients,
        "width_setting": width,
        "width": done.opening.width,
        "client_seconds": statistics.median(clock.of_clients(names)),
        "server_seconds": clock.seconds["server"],
        "client_megabytes_up": up / 1e6,
        "upload_to_float32": up / (4 * gradients.num_parameters),
        "peak_megabytes_before": before,
        "peak_megabytes": peak,
        **errors_of_the_mean(done.total, expected),
        "error_to_uploads": off / size,
    }


class _Gradients:
    """Every client's upload, computed when it is asked for."""

    def __init__(self, model: str) -> None:
        self._model = build_model(model, input_shape=INPUT_SHAPE, num_outputs=10)
        self.num_parameters = sum(p.numel() for p in self._model.parameters())

    def __call__(self, name: str) -> Upload:
        number = int(name.removeprefix("client-"))
        draws = torch.Generator().manual_seed(number)
        inputs = torch.randn(BATCH_SIZE, *INPUT_SHAPE, generator=draws)
        targets = torch.randint(0, 10, (BATCH_SIZE,), generator=draws)
        loss = F.cross_entropy(self._model(inputs), targets)
        found = torch.autograd.grad(loss, list(self._model.parameters()))
        return Upload(0, 100 + 7 * number, torch.cat([part.reshape(-1) for part in found])[None], torch.zeros(0))

    def sum_of(self, names: list[str]) -> tuple[Aggregate, float]:
        """In float64, one after the other, and the weighted mean of the uploads' norms."""
        terms = torch.zeros(1, self.num_parameters, dtype=torch.float64)
        weight, size = 0, 0.0
        for name in names:
            upload = self(name)
            terms.add_(upload.terms, alpha=upload.weight)
            weight += upload.weight
            size += upload.weight * float(upload.terms.double().norm())
        return Aggregate(0, weight, terms, torch.zeros(0)), size / weight


def _setting(text: str) -> WidthSetting:
    return "auto" if text == "auto" else next(width for width in WIDTHS if width == int(text))


def measure_process(model: str, num_clients: str, width: str) -> None:
    """What a process of its own does: one row, as JSON."""
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(measure(model, int(num_clients), _setting(width))))
