"""A job that does nothing but live, for tests of processes and of the administrator's side."""

import json
import time
from pathlib import Path

from nvflare.collab import collab

ALLOWED = f"{__name__}."


class WaitingServer:
    """Its main method runs until the job is aborted."""

    @collab.main
    def run(self):
        while not collab.is_aborted:
            time.sleep(0.1)


class WaitingSite:
    """Has a method, since a site without one is no part of a Collab job."""

    @collab.publish
    def nothing(self):
        return None


def write_job(directory: Path, *, code: str = "") -> Path:
    """A job directory without code, unless `code` is given."""
    config = directory / "app" / "config"
    config.mkdir(parents=True)
    controller = {"id": "controller", "path": "nvflare.collab.runtime.controller.CollabController"}
    executor = {"path": "nvflare.collab.runtime.executor.CollabExecutor", "args": {"client_obj_id": "_client"}}
    server = {
        "format_version": 2,
        "workflows": [{**controller, "args": {"server_obj_id": "_server"}}],
        "components": [{"id": "_server", "path": f"{ALLOWED}WaitingServer", "args": {}}],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "_client", "path": f"{ALLOWED}WaitingSite", "args": {}}],
    }
    meta = {"name": "waiting", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    (directory / "meta.json").write_text(json.dumps(meta))
    if code:
        (directory / "app" / "custom").mkdir()
        (directory / "app" / "custom" / "brought.py").write_text(code)
    return directory


def allow(kit: Path) -> None:
    """Let jobs build the classes of this module at one party."""
    path = kit / "flare" / "local" / "resources.json"
    resources = json.loads(path.read_text())
    resources["class_allow_list"].append(ALLOWED)
    path.write_text(json.dumps(resources))
