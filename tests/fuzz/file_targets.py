"""Every reader of files: runs, plans, exports, audits, kits, jobs and data, each with small true examples."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.data.image_files import (
    cifar_batch,
    idx_bytes,
    tiny_set,
    write_cifar10_batches,
    write_cifar10_binary,
    write_mnist_idx,
    write_npz,
    write_pickle,
    write_svhn_mat,
)
from tests.data.test_tabular import ADDITIONAL_HEADER, HOSPITALS, heart_row, twenty_customers, write
from tests.fuzz.formats import checkpoint_mutation, mat_mutation, pickle_mutation, safetensors_mutation, zip_mutation
from tests.fuzz.mutations import Mutation, blind, json_mutation, toml_mutation
from tests.fuzz.target import Target
from tests.runs.rounds.test_in_process import plan as small_plan

from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.auditor import stored_plan, stored_result
from bilateral.data import load_dataset
from bilateral.engine.checkpoint import load_checkpoint, putting_back
from bilateral.engine.event_tail import EventTail
from bilateral.engine.events import read_events
from bilateral.engine.plan import RunPlan, dump_plan, load_plan
from bilateral.engine.run_status import read_run
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.runs.hetero.plan import HeteroPlan, dump_hetero_plan, load_hetero_plan
from bilateral.runs.rounds.conductor import _read_counts
from bilateral.runs.rounds.export import export_run, load_exported
from bilateral.runs.rounds.in_process import run

DOCS = Path(__file__).parents[2] / "docs"


def file_targets(folder: Path) -> tuple[Target, ...]:
    """All readers; their files lie below `folder`."""
    maker = _Maker(folder / "files")
    return (*_runs(maker), *_plans(maker), *_audits(maker), *_kits_and_jobs(maker), *_data(maker))


class _Maker:
    """Targets whose bytes become a file before they are read."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder

    def folder(self, name: str) -> Path:
        path = self._folder / name.replace(" ", "-")
        path.mkdir()
        return path

    def target(
        self,
        name: str,
        path: Path,
        mutations: tuple[Mutation, ...],
        read: Callable[[], object],
        *more: bytes,
        tolerant: bool = False,
    ) -> Target:
        """The file at `path` is the example; `more` are others in its place."""

        def replace_and_read(data: bytes) -> None:
            path.write_bytes(data)
            read()

        return Target(name, (path.read_bytes(), *more), mutations, replace_and_read, tolerant)


def _runs(maker: _Maker) -> list[Target]:
    chosen = small_plan(training__rounds=2, training__checkpoint_every=1, training__momentum=0.9)
    home = maker.folder("run")
    path = home / "out"
    run(chosen, output=path, reference=False)
    export = home / "model.safetensors"
    export_run(path, export)
    images = home / "images"
    run(
        small_plan(data__name="digits", model__name="convnet", model__options={"width": 4}, training__rounds=1),
        output=images,
        reference=False,
    )
    export_run(images, home / "convnet.safetensors")
    resume = _resuming(chosen, path)
    structured = (safetensors_mutation, safetensors_mutation, blind)
    events = EventTail(path / "events.jsonl")
    watched = path / "events.jsonl"
    without_log = maker.folder("run without log") / "out"
    shutil.copytree(path, without_log)
    (without_log / "events.jsonl").unlink()
    privacy = without_log / "privacy.json"
    counts = home / "counts.json"
    counts.write_text('{"a": 10, "b": 20}')
    spent = home / "spent.json"
    FileCounter.create(spent)
    more = (home / "convnet.safetensors").read_bytes()
    shutil.copy(export, home / "predict.safetensors")
    return [
        maker.target("checkpoint", path / "checkpoint.safetensors", structured, resume),
        maker.target(
            "checkpoint with its checksum", _copy(path, maker), (checkpoint_mutation,), _resuming_copy(chosen, maker)
        ),
        maker.target("export", export, structured, lambda: load_exported(export), more),
        maker.target(
            "events",
            watched,
            (_line_mutation, blind),
            lambda: (events.read_new(), list(read_events(watched)), _watched(path)),
            tolerant=True,
        ),
        maker.target(
            "result", without_log / "result.json", (json_mutation, blind), lambda: _watched(without_log), tolerant=True
        ),
        maker.target(
            "privacy",
            privacy,
            (json_mutation, blind),
            lambda: _watched(without_log),
            tolerant=True,
        ),
        maker.target("prediction", home / "predict.safetensors", (_card_mutation,), _predicting(home)),
        *_hetero_states(maker),
        maker.target("counts", counts, (json_mutation, blind), lambda: _read_counts(counts, ["a", "b"])),
        maker.target("round counter", spent, (json_mutation, blind), lambda: FileCounter(spent).used),
    ]


def _copy(path: Path, maker: _Maker) -> Path:
    target = maker.folder("resealed") / "checkpoint.safetensors"
    shutil.copy(path / "checkpoint.safetensors", target)
    return target


def _resuming_copy(chosen: RunPlan, maker: _Maker) -> Callable[[], object]:
    return _resuming(chosen, maker._folder / "resealed")


def _resuming(chosen: RunPlan, path: Path) -> Callable[[], object]:
    """A run that goes on from the checkpoint in `path`: everything up to its next round."""
    from bilateral.engine.federation import load_federation
    from bilateral.engine.run_directory import RunDirectory
    from bilateral.engine.setup import make_blueprints
    from bilateral.engine.transcript import Transcript
    from bilateral.runs.rounds.in_process import no_record
    from bilateral.runs.rounds.loop import Lane, RoundLoop

    federation = load_federation(chosen, None)
    (main,) = make_blueprints([chosen], federation)
    problem, directory = federation.problem, RunDirectory(path)

    def resume() -> None:
        checkpoint = load_checkpoint(directory.checkpoint)
        lane = Lane(main.server(), main.local_exchange(no_record))
        loop = RoundLoop(
            chosen, federation.names, federation.test_data, problem.loss, lane, None, directory, Transcript(False)
        )
        with putting_back(directory.checkpoint):
            loop.load(checkpoint)

    return resume


def _watched(path: Path) -> None:
    """As `bilateral watch --json` shows it."""
    json.dumps(read_run(path).as_dict())


def _predicting(home: Path) -> Callable[[], object]:
    """`bilateral predict`: the card says which data, with which options and loss."""
    from typer.testing import CliRunner

    from bilateral.cli.main import app

    def predict() -> None:
        found = CliRunner().invoke(app, ["predict", str(home / "predict.safetensors"), "--json"])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception

    return predict


def _card_mutation(data: bytes, rng: Any) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    card = json_mutation(header["__metadata__"]["bilateral"].encode(), rng)
    header["__metadata__"]["bilateral"] = card.decode("utf-8", "replace")
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _hetero_states(maker: _Maker) -> list[Target]:
    """What the server and a site of a heterogeneous run keep."""
    import torch
    from tests.runs.hetero.test_record import PLAN, record_at

    from bilateral.engine.run_directory import RunDirectory
    from bilateral.runs.hetero.record import HeteroRecord
    from bilateral.runs.hetero.state import ClientState, SiteStore

    home = maker.folder("hetero")
    directory = RunDirectory.create(home / "server", PLAN)
    record = record_at((2, 1, 0))
    record.save(directory)
    store = SiteStore(home / "site", PLAN)
    store.save(ClientState(2, {"w": torch.ones(3)}, torch.ones(2, 2), [0.5], [0]))
    mutations = (checkpoint_mutation, safetensors_mutation, blind)
    facts = record.facts
    return [
        maker.target(
            "hetero record",
            directory.checkpoint,
            mutations,
            lambda: HeteroRecord.load(PLAN, facts, directory).progress(),
        ),
        maker.target("hetero site", home / "site" / "checkpoint.safetensors", mutations, store.load),
    ]


def _line_mutation(data: bytes, rng: Any) -> bytes:
    lines = data.splitlines()
    index = rng.randrange(len(lines))
    lines[index] = json_mutation(lines[index], rng)
    return b"\n".join(lines) + b"\n"


def _plans(maker: _Maker) -> list[Target]:
    home = maker.folder("plans")
    plan, hetero = home / "plan.toml", home / "hetero.toml"
    plan.write_text(dump_plan(RunPlan()))
    own = dump_plan(small_plan(noise__mechanism="sound", noise__epsilon=8.0, training__loss="mse"))
    hetero.write_text(dump_hetero_plan(HeteroPlan()))
    return [
        maker.target(
            "plan", plan, (toml_mutation, toml_mutation, blind), lambda: _settled(load_plan(plan)), own.encode()
        ),
        maker.target("hetero plan", hetero, (toml_mutation, blind), lambda: load_hetero_plan(hetero).digest()),
    ]


def _settled(plan: RunPlan) -> None:
    """What every command does with a plan that was read."""
    plan.digest()
    plan.fingerprint()
    dump_plan(plan)


def _audits(maker: _Maker) -> list[Target]:
    values = json.loads((DOCS / "audits" / "float-masks" / "audit.json").read_text())
    values["evidence"] = [_shortened(one) for one in values["evidence"][:4]]
    home = maker.folder("audit")
    task = {
        "kind": "RunPlan",
        "plan": json.loads(RunPlan().model_dump_json()),
        "effort": "standard",
        "style": "hardened",
        "only": [],
    }
    directory = AuditDirectory.create(home / "out", "title", task)
    result = home / "audit.json"
    result.write_text(json.dumps(values))
    evidence = directory.path / "evidence" / "one.json"
    evidence.write_text(json.dumps({"seconds": 1.5, "evidence": values["evidence"][:2]}))
    return [
        maker.target("stored audit", result, (json_mutation, json_mutation, blind), lambda: _shown(result)),
        maker.target("audit evidence", evidence, (json_mutation, blind), directory.finished),
        maker.target(
            "audit plan",
            directory.path / "plan.json",
            (json_mutation, blind),
            lambda: stored_plan(AuditDirectory.open(directory.path).task()),
        ),
    ]


def _shown(path: Path) -> None:
    """A stored audit as `bilateral audit --show` shows it, as JSON and as tables."""
    from rich.console import Console

    from bilateral.report.audit_table import audit_tables

    found = stored_result(path)
    json.dumps(found.as_dict())
    console = Console(file=io.StringIO(), width=100)
    for part in audit_tables(found, details=True):
        console.print(part)


def _shortened(evidence: dict[str, Any]) -> dict[str, Any]:
    for name in ("target", "positive", "negative"):
        for scores in (evidence[name] or {"scores": []})["scores"]:
            scores["values"] = scores["values"][:6]
    return {
        **evidence,
        "curves": [{**c, "lines": {k: v[:4] for k, v in c["lines"].items()}} for c in evidence["curves"]],
    }


def _kits_and_jobs(maker: _Maker) -> list[Target]:
    from bilateral.engine.flare.job_content import FILES, check_app
    from bilateral.engine.flare.kit_builder import write_new_identity
    from bilateral.engine.flare.premises import SIMULATION, accepted_plan, plan_of_job
    from bilateral.engine.flare.project_file import Deployment, project_text, read_project
    from bilateral.engine.flare.site_settings import load_site_settings, read_identity
    from bilateral.engine.kind import HETERO, ROUNDS
    from bilateral.engine.remote.hosting import hosted_kind

    os.environ[SIMULATION] = "1"
    home = maker.folder("kit")
    plan = small_plan()
    settings = home / "bilateral.toml"
    settings.write_text(
        f'[data]\ndata_dir = "data"\noptions = {{ num_outputs = 2 }}\n[identity]\nkey_file = "identity.key"\n'
        f'[identities]\na = "{"ab" * 32}"\n[plans]\naccepted = ["{plan.fingerprint()}"]\n[code]\nallowed = []\n'
        '[server]\nruns = "runs"\n'
    )
    kit = load_site_settings(settings)
    key = home / "identity.key"
    write_new_identity(key)
    app = home / "app.zip"
    with zipfile.ZipFile(app, "w") as archive:
        for name in FILES:
            archive.writestr(name, json.dumps({"executors": [{"args": {"plan": plan.model_dump_json(), "x": [1]}}]}))
    text = home / "plan.json"
    text.write_text(plan.model_dump_json())
    project = home / "project.yml"
    project.write_text(project_text(Deployment("gate", "localhost", ["a"], plans=[plan.fingerprint()])))
    hetero = home / "hetero.json"
    hetero.write_text(HeteroPlan().model_dump_json())
    return [
        maker.target("site settings", settings, (toml_mutation, blind), lambda: load_site_settings(settings).pinned()),
        maker.target("identity key", key, (blind,), lambda: read_identity(key)),
        maker.target("project", project, (blind,), lambda: read_project(project)),
        maker.target("job", app, (zip_mutation, blind), lambda: check_app(app.read_bytes())),
        maker.target("job files", app, (_json_in_zip,), lambda: check_app(app.read_bytes())),
        maker.target(
            "plan of a job",
            text,
            (json_mutation, blind),
            lambda: plan_of_job(hosted_kind(ROUNDS), text.read_text("utf-8", "replace")).digest(),
        ),
        maker.target(
            "accepted plan",
            text,
            (json_mutation, blind),
            lambda: accepted_plan(hosted_kind(ROUNDS), text.read_text("utf-8", "replace"), kit),
        ),
        maker.target(
            "hetero plan of a job",
            hetero,
            (json_mutation,),
            lambda: plan_of_job(hosted_kind(HETERO), hetero.read_text("utf-8", "replace")),
        ),
    ]


def _json_in_zip(data: bytes, rng: Any) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    members[name] = json_mutation(members[name], rng)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, content in members.items():
            archive.writestr(one, content)
    return target.getvalue()


def _data(maker: _Maker) -> list[Target]:
    rng = np.random.default_rng(7)
    colour, grey = tiny_set(rng, num_train=10, num_test=4), tiny_set(rng, size=8, channels=1, num_train=10, num_test=4)
    folders = {name: maker.folder(name) for name in ("cifar", "bin", "svhn", "packed", "mnist", "gz", "npz", "own")}
    write_cifar10_batches(folders["cifar"], colour)
    write_cifar10_binary(folders["bin"], colour)
    write_svhn_mat(folders["svhn"], colour)
    _write_packed_svhn(folders["packed"], colour)
    write_mnist_idx(folders["mnist"], grey)
    write_mnist_idx(folders["gz"], grey, suffix=".gz")
    write_npz(
        folders["npz"] / "ham10000.npz",
        tiny_set(rng, size=8, num_classes=7),
        site_train=["a"] * 20,
        site_test=["b"] * 10,
    )
    own = folders["own"] / "own.npz"
    numbers = np.arange(40, dtype=np.float64).reshape(10, 4)
    np.savez_compressed(own, x_train=numbers, y_train=np.arange(10) % 3, x_test=numbers, y_test=np.arange(10) % 2)

    def read(name: str, folder: str, **options: Any) -> Callable[[], object]:
        return lambda: load_dataset(name, folders[folder], **options)

    batch = folders["cifar"] / "cifar-10-batches-py" / "data_batch_1"
    others = []
    for protocol in (4, 5, "python 2"):
        write_pickle(folders["cifar"] / "other" / "x", cifar_batch(colour.x_train[:2], colour.y_train[:2]), protocol)
        others.append((folders["cifar"] / "other" / "x").read_bytes())
    return [
        maker.target(
            "cifar pickle", batch, (pickle_mutation, pickle_mutation, blind), read("cifar10", "cifar"), *others
        ),
        maker.target(
            "cifar binary", folders["bin"] / "cifar-10-batches-bin" / "test_batch.bin", (blind,), read("cifar10", "bin")
        ),
        maker.target("svhn", folders["svhn"] / "train_32x32.mat", (mat_mutation, blind), read("svhn", "svhn")),
        maker.target(
            "svhn packed", folders["packed"] / "train_32x32.mat", (mat_mutation, blind), read("svhn", "packed")
        ),
        maker.target("mnist", folders["mnist"] / "train-images-idx3-ubyte", (blind,), read("mnist", "mnist")),
        maker.target(
            "mnist gz",
            folders["gz"] / "train-images-idx3-ubyte.gz",
            (blind, _gzip_mutation),
            read("mnist", "gz"),
        ),
        maker.target("image npz", folders["npz"] / "ham10000.npz", (zip_mutation, blind), read("ham10000", "npz")),
        maker.target("own npz", own, (zip_mutation, blind), read("npz", "own", path="own.npz")),
        *_tables(maker),
    ]


def _write_packed_svhn(folder: Path, tiny: Any) -> None:
    from scipy.io import savemat

    for name, images, labels in (("train", tiny.x_train, tiny.y_train), ("test", tiny.x_test, tiny.y_test)):
        content = {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]}
        savemat(folder / f"{name}_32x32.mat", content, do_compression=True)


@cache
def _gzip_bomb() -> bytes:
    """300 images of a megapixel, all black: 300 kB."""
    import gzip

    sizes = b"".join(size.to_bytes(4, "big") for size in (300, 1024, 1024))
    return gzip.compress(bytes([0, 0, 8, 3]) + sizes + bytes(300 << 20), 9)


def _gzip_mutation(data: bytes, rng: Any) -> bytes:
    import gzip

    inner = gzip.decompress(data)
    if rng.random() < 0.3:
        return gzip.compress(inner[:16] + bytes(1 << 10)) if rng.random() < 0.5 else _gzip_bomb()
    if rng.random() < 0.3:
        return gzip.compress(idx_bytes(np.zeros((2, 3, 4))) + inner[rng.randrange(len(inner)) :])
    return gzip.compress(blind(inner, rng), 1)


def _tables(maker: _Maker) -> list[Target]:
    bank, heart = maker.folder("bank"), maker.folder("heart")
    customers = write(bank / "bank-additional-full.csv", ADDITIONAL_HEADER, *twenty_customers())
    for place, hospital in enumerate(HOSPITALS):
        write(heart / f"processed.{hospital}.data", *(heart_row(40 + place + i, num=i % 2) for i in range(10)))
    return [
        maker.target("bank", customers, (_cell_mutation, blind), lambda: load_dataset("bank-marketing", bank)),
        maker.target(
            "heart", heart / "processed.va.data", (_cell_mutation, blind), lambda: load_dataset("heart-disease", heart)
        ),
    ]


def _cell_mutation(data: bytes, rng: Any) -> bytes:
    """Cells of a table, or ten thousand rows in which every cell of a column is another."""
    separator = b";" if b";" in data else b","
    lines = data.splitlines()
    if rng.random() < 0.1:
        column = rng.randrange(len(lines[-1].split(separator)))
        for number in range(10_000):
            cells = lines[-1].split(separator)
            cells[column] = str(number).encode()
            lines.insert(-1, separator.join(cells))
        return b"\n".join(lines)
    index = rng.randrange(len(lines))
    cells = lines[index].split(separator)
    values = (b"", b"nan", b"inf", b"1e400", b"-1", b'"', b"x" * 200_000, b"\xff", b"9" * 5000, b"\x00", b"1_0", b"0x1")
    cells[rng.randrange(len(cells))] = rng.choice(values)
    lines[index] = separator.join(cells)
    return b"\n".join(lines)
