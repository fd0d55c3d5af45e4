"""The papers' data, where they are found, and what stands in for them where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from bilateral.data import load_dataset
from bilateral.errors import MissingDataError
from bilateral.reproduce.tables import Differs, Scale


@dataclass(frozen=True)
class Chosen:
    """Settings of a plan for some data, and how they differ from the paper's."""

    settings: Mapping[str, Any]
    differs: Differs


@dataclass(frozen=True)
class Source:
    """Data of a paper. `quick`, `full`: options by scale; `stand_in`: embedded data in place of missing ones."""

    called: str
    name: str
    paper: str
    size: str
    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str = "digits"

    def chosen(self, scale: Scale, data_dir: Path | None, *, stands_in: bool = True) -> Chosen:
        """The data that are there. Raises if they are missing and nothing may stand in for them."""
        options = self.quick if scale == "quick" else self.full
        if is_there(self.name, data_dir) or not stands_in:
            settings = {"data.name": self.name, **({"data.options": dict(options)} if options else {})}
            shrink = options.get("shrink", 1)
            smaller = f", {shrink}x{shrink} pixels averaged to one" if shrink > 1 else ""
            if "num_train" in options:
                smaller += f"; {options['num_train']:,} + {options['num_test']:,} of them"
            return Chosen(settings, Differs(f"data ({self.called})", self.paper, f"{self.size}{smaller}"))
        here = f"{self.stand_in}, which are embedded: {self.name} was not found (`--data-dir`, see `bilateral doctor`)"
        return Chosen({"data.name": self.stand_in}, Differs(f"data ({self.called})", self.paper, here))


@cache
def is_there(name: str, data_dir: Path | None) -> bool:
    """Whether the data can be loaded."""
    try:
        load_dataset(name, data_dir)
    except MissingDataError:
        return False
    return True


BANK: Final = Source(
    "UBMD",
    "bank-marketing",
    "Bank Marketing, 41,188 rows; columns not named",
    "Bank Marketing, without the column `duration`, which gives the answer away",
    stand_in="diabetes",
)
HAM: Final = Source(
    "LDC",
    "ham10000",
    "HAM10000, all images",
    "HAM10000, 3,200 + 800 images of 64x64",
    {"shrink": 8, "num_train": 1600, "num_test": 400},
    {"shrink": 2},
)
APTOS: Final = Source(
    "ABD",
    "aptos",
    "APTOS 2019, all images",
    "APTOS 2019, 1,500 + 300 images of 64x64",
    {"shrink": 8},
    {"shrink": 2},
)
CIFAR10: Final = Source(
    "CIFAR10",
    "cifar10",
    "CIFAR-10, 50,000 + 10,000",
    "CIFAR-10, a subset of 15,000 + 3,000",
    {"shrink": 4, "num_train": 5000, "num_test": 1000},
)
CIFAR100: Final = Source(
    "CIFAR100", "cifar100", "CIFAR-100, 50,000 + 10,000", "CIFAR-100, a subset of 10,000 + 2,000", {"shrink": 2}
)
SVHN: Final = Source("SVHN", "svhn", "SVHN, format 2", "SVHN, a subset of 12,000 + 3,000")
BREAKHIS: Final = Source(
    "BreakHis", "breakhis", "BreakHis", "BreakHis at 400x, 64x64, split by patient", {"shrink": 8}, {"shrink": 2}
)
DIGITS: Final = Source("digits", "digits", "not among the papers' data", "digits of scikit-learn, 1,797 images of 8x8")
