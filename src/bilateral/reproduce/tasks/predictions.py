"""Secret-shared predictions by three processes: `bench secure-prediction`, sealed style, everything counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bilateral.bench.secure_prediction import ALL, SecurePrediction, measure_secure_prediction
from bilateral.protocols.share.gates.styles import SEALED
from bilateral.reproduce.tables import Around, Measured

_PHASE: Final = "total"


@dataclass(frozen=True)
class Predictions:
    """Values are `model/batch/seconds` and `model/batch/MB`, both of one prediction, the whole batch divided by it."""

    model: str
    batch_sizes: tuple[int, ...] = (1, 8)
    repeats: int = 2
    input_shape: tuple[int, ...] = (3, 32, 32)

    def describe(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def pilot(self) -> tuple[Predictions, float]:
        total = sum(self.batch_sizes) / self.batch_sizes[0]
        return replace(self, batch_sizes=self.batch_sizes[:1], repeats=1), total * (self.repeats + 1) / 2

    def run(self, around: Around) -> Measured:
        chosen = SecurePrediction(
            (self.model,), self.batch_sizes, self.repeats, (SEALED.name,), input_shape=self.input_shape
        )
        rows = measure_secure_prediction(
            False, lambda done, total, what: around.note(f"{what}: {done} of {total}"), chosen
        )
        values: dict[str, list[float | None]] = {}
        for row in rows:
            if (row["phase"], row["party"]) == (_PHASE, ALL):
                key = f"{self.model}/{row['batch_size']}"
                values[f"{key}/seconds"] = [row["seconds_per_prediction"]]
                values[f"{key}/MB"] = [row["megabytes_per_prediction"]]
                values[f"{key}/error"] = [row["max_logit_error"]]
        return Measured(values)
