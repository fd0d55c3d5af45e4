"""A heterogeneous run as a FLARE Collab recipe, and its simulator:

python -m bilateral.engine.flare.hetero_recipe JOB.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bilateral.engine.flare.hetero_coordinator import HeteroCoordinator
from bilateral.engine.flare.hetero_site import HeteroSite
from bilateral.engine.flare.recipe import MAX_THREADS, CodelessRecipe
from bilateral.engine.flare.simulator import JOB_NAME, simulate
from bilateral.runs.hetero.record import PublicFacts

ANSWER_SECONDS = 600.0
"""How long FLARE waits for a site when the job begins: many processes start on few cores."""


@dataclass(frozen=True)
class HeteroJob:
    """What a job carries. `plan` is JSON; the run directory `output` has the sites' own directories below it."""

    plan: str
    output: str
    engine: str
    sites: tuple[str, ...]
    dataset: str
    num_samples: dict[str, int]
    data_dir: str
    workspace: str

    def recipe(self) -> CodelessRecipe:
        """The recipe of one term; every site is needed."""
        facts = json.dumps(asdict(PublicFacts(self.dataset, self.num_samples)))
        return CodelessRecipe(
            JOB_NAME,
            server=HeteroCoordinator(self.plan, self.output, self.engine, facts),
            client=HeteroSite(self.plan, str(Path(self.output) / "sites"), self.data_dir),
            min_clients=len(self.sites),
            sync_task_timeout=ANSWER_SECONDS,
            max_call_threads_for_server=MAX_THREADS,
            max_call_threads_for_client=8,
        )


def main(file: Path) -> None:
    """Run a simulated job to its end."""
    job = HeteroJob(**json.loads(file.read_text(encoding="utf-8")))
    simulate(job.recipe(), job.sites, Path(job.workspace))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
