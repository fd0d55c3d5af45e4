"""Messages before the first round of a term: who takes part, and the public facts from which both sides build.

1. `SiteCard`   site -> server   what the site runs; how many samples it has, only if the plan's accounting needs that
2. `Briefing`   server -> site   the facts of the run: everything in it is public to all sites
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.messages import Message

INTRODUCE, BRIEF = 0, 1
"""The numbers of the two packets to a site on the lane of enrolment: nothing, and the `Briefing`."""


@dataclass(frozen=True)
class SiteCard(Message):
    """A site introduces itself. `num_samples` 0: not told."""

    plan_digest: str
    version: str
    num_samples: int


@dataclass(frozen=True)
class Briefing(Message):
    """The facts of a term, the same for all sites. Sample counts are 0 where they were not told.

    `inputs`: what they are, in words, where a sample has several (`InputForm`).
    `term_scales`: how sound noise is divided between the terms (float64; empty without it).
    """

    plan_digest: str
    run_id: bytes
    term: int
    members: tuple[str, ...]
    num_samples: tuple[int, ...]
    dataset: str
    task: str
    input_shape: tuple[int, ...]
    num_outputs: int
    loss: str
    class_names: tuple[str, ...]
    columns: tuple[str, ...]
    input_dtype: str
    inputs: str
    term_scales: Tensor
