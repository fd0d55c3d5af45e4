"""A run as a FLARE Collab recipe: the same for the simulator, for processes on one machine and for a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.collab import CollabRecipe

from bilateral.engine.flare.coordinator import Coordinator
from bilateral.engine.flare.premises import text_of_facts
from bilateral.engine.flare.site import Site
from bilateral.engine.remote.hosting import hosted_kind

MAX_THREADS = 64


class CodelessRecipe(CollabRecipe):
    """Ships no source: sites run the `bilateral` that their operators installed, and refuse jobs that bring code."""

    def __init__(self, job_name: str, **settings: Any) -> None:
        super().__init__(job_name, **settings)
        self._job.set_app_packages(["bilateral"])  # installed everywhere: FLARE's packer need not copy it either

    @staticmethod
    def _user_source_entries(objs: Any) -> list[tuple[str, str | None]]:  # noqa: ARG004
        return []


def make_recipe(
    kind: str,
    plan: Any,
    output: str,
    *,
    engine: str,
    facts: Mapping[str, Any] | None = None,
    stores: Path | None = None,
    data_dir: Path | None = None,
    min_sites: int = 1,
    name: str = "bilateral",
    coordinator: type[Coordinator] = Coordinator,
    site: type[Site] = Site,
) -> CodelessRecipe:
    """The recipe of one term. `min_sites`: FLARE starts the job with so many, and ends it when fewer are left.

    `facts`, `stores`, `data_dir`: see `Site`. `coordinator` and `site`: the two ends; a benchmark has its own, which no
    kit of a deployment lists.
    """
    text, told, folder = plan.model_dump_json(), text_of_facts(facts or {}), str(data_dir) if data_dir else ""
    return CodelessRecipe(
        name,
        server=coordinator(kind, text, told, output, engine, folder),
        client=site(kind, text, told, str(stores) if stores else "", folder),
        min_clients=min_sites,
        sync_task_timeout=hosted_kind(kind).answer_seconds(plan),
        max_call_threads_for_server=MAX_THREADS,
        max_call_threads_for_client=8,
    )
