"""Answers over FLARE: the same integers as in one process; kits of a deployment, in which the server's counts last.

It runs what docs/how-to/deployment.md prints of it.
"""

import shutil
import threading
import time
from contextlib import contextmanager

import pytest
import torch

from bilateral.engine.events import read_events
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.deployment import add_plan, deploy
from bilateral.engine.flare.job_content import has_references
from bilateral.engine.flare.launch import run_on_flare
from bilateral.engine.flare.premises import accepted_plan
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, Kits, extend, provision
from bilateral.engine.flare.site_settings import load_site_settings
from bilateral.engine.flare.submission import submit_run
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import BilateralError, CheckpointError, DeploymentError, PlanError, PlanNotAcceptedError
from bilateral.protocols.noise.round_counter import FileCounter, MemoryCounter
from bilateral.randomness import SecureRandomness, SeededRandomness
from bilateral.runs.rounds.in_process import run
from bilateral.serving.asking import AskingSession
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.folder import Kit
from bilateral.serving.hosted.kind import KIND, simulated, simulated_identity
from bilateral.serving.hosted.plan import AnswersPlan, ServingPlan
from bilateral.serving.model import ServedModel
from bilateral.serving.server import AnswerServer, Conditions
from bilateral.serving.sockets import Line, session_of

PLAN = ServingPlan(run="first", clients=("anna", "carol"), dealer="auditor", answers=AnswersPlan(questions=40), seed=5)
TRAINED = {
    "data": {"name": "breast-cancer"},
    "model": {"name": "mlp-3", "options": {"width": 8}},
    "protection": "fedavg",
    "federation": {"clients": 2},
    "training": {"rounds": 3, "batch_size": 16},
}
MORE = PLAN.model_copy(update={"answers": AnswersPlan(questions=50)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "first"
    run(RunPlan.model_validate(TRAINED), output=path, reference=False)
    return path


@pytest.fixture(scope="module")
def inputs(trained):
    return ServedModel.of_run(trained, ()).examples[:12]


def until(check, seconds=900.0):
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.2)
    return found


@contextmanager
def asking(folder, name):
    """Once the door of a site is open."""
    kit = until(lambda: _kit(folder))
    assert kit.name == name
    line = until(lambda: _line(folder))
    try:
        yield session_of(Kit.read(folder), line, SecureRandomness())
    finally:
        line.close()


def _kit(folder):
    try:
        return Kit.read(folder)
    except DeploymentError:
        return None


def _line(folder):
    try:
        return Line(Kit.read(folder))
    except DeploymentError:
        return None


def here(trained, client, term=0):
    """The same parties in this process, with the same seeds."""
    identities = {name: simulated_identity(PLAN, name) for name in PLAN.parties}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    dealer = AnswerDealer(PLAN.dealer, identities[PLAN.dealer], pinned, simulated(PLAN, "dealer"))
    server = AnswerServer(
        ServedModel.of_run(trained, ()),
        Conditions(PLAN.questions),
        PLAN.dealer,
        dealer.handle,
        {name: MemoryCounter() for name in PLAN.clients},
        pinned,
        simulated(PLAN, "server").child("term", term),
    )
    session = AskingSession(
        client, identities[client], PLAN.dealer, pinned, SeededRandomness(1), server.session(client).handle
    )
    session.open()
    return session


@contextmanager
def in_background(work):
    """`work(stopped)` in a thread of its own; what it raised is raised here."""
    stop, raised = threading.Event(), []

    def guarded():
        try:
            work(stop.is_set)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if raised:
            raise raised[0]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["flare-sim", "flare-poc"])
def test_answers_over_flare_are_the_same_to_the_last_bit(tmp_path, trained, inputs, engine):
    place = tmp_path / "first"
    shutil.copytree(trained, place)

    def serve(stopped, resume=False):
        options = {"run": str(place)}
        run_on_flare(
            KIND, PLAN, engine, output=tmp_path / "service", options=options, should_stop=stopped, resume=resume
        )

    with in_background(serve), asking(tmp_path / "service" / "sites" / "anna", "anna") as there:
        wanted = here(place, "anna")
        there.open()
        for reveal in ("logits", "class"):
            assert torch.equal(there.ask(inputs, reveal), wanted.ask(inputs, reveal))
    counts = place / "serving" / "questions"
    assert FileCounter(counts / "anna.json", "questions").used == 24
    assert FileCounter(counts / "carol.json", "questions").used == 0
    last = list(read_events(tmp_path / "service" / "events.jsonl"))[-1]
    assert (last["event"], last["finished"], last["round"]) == ("run_ended", False, 24)


@pytest.fixture
def deployed(tmp_path, trained):
    kits = deploy(PLAN, server="localhost", port=free_ports(1)[0], output=tmp_path / "fed").kits
    shutil.copytree(trained, kits.server / "runs" / PLAN.run)
    return kits


def used(kits, client="anna"):
    return FileCounter(kits.server / "spent" / "questions" / PLAN.run / f"{client}.json", "questions").used


@pytest.mark.long
def test_kits_of_a_deployment_ask_deal_answer_and_count(deployed, inputs):
    """Real kits, TLS, own secrets. A dealer and a site die and come back; wiped jobs give nothing back."""
    kits = deployed
    model = ServedModel.of_run(kits.server / "runs" / PLAN.run, ())
    with LocalProcesses(kits, {"OMP_NUM_THREADS": "1"}) as processes, Admin(kits.admin):
        processes.start_server()
        processes.start_sites()

        def serve(stopped, **more):
            submit_run(kits.admin, PLAN, name="service", should_stop=stopped, **more)

        with in_background(serve):
            with asking(kits.sites["anna"], "anna") as session:
                assert session.open().used == 0
                answers = session.ask(inputs, "logits")
                assert answers.shape == (12, model.circuit.output.size)
                processes.kill(PLAN.dealer)
                with pytest.raises(BilateralError, match=PLAN.dealer):
                    session.ask(inputs[:3], "class")
            assert used(kits) == 15
            processes.start(PLAN.dealer)
            processes.kill("carol")
            processes.start("carol")
            with asking_patiently(kits, "carol") as session:
                assert len(session.ask(inputs[:4], "class")) == 4
        assert (used(kits), used(kits, "carol")) == (15, 4)
        for party in (kits.server, *kits.sites.values()):
            for folder in (party / "flare").iterdir():
                if len(folder.name) == 36:  # of a job
                    shutil.rmtree(folder)
        with in_background(lambda stopped: serve(stopped, resume=True)), asking_patiently(kits, "anna") as session:
            assert session.used == 15
            with pytest.raises(BilateralError, match="anna has asked 39 of 40 questions, so 12 more"):
                for _ in range(3):
                    session.ask(inputs, "class")
    assert used(kits) == 39


@contextmanager
def asking_patiently(kits, name):
    """A session that is open: while parties come back, terms end and doors are others'."""

    def opened():
        line = _line(kits.sites[name])
        if line is None:
            return None
        session = session_of(Kit.read(kits.sites[name]), line, SecureRandomness())
        try:
            session.open()
        except BilateralError:
            line.close()
            return None
        return session, line

    session, line = until(opened)
    try:
        yield session
    finally:
        line.close()


class TestKits:
    def test_the_server_counts_and_nobody_else(self, deployed):
        counts = sorted((deployed.server / "spent").rglob("*.json"))
        assert [str(path.relative_to(deployed.server / "spent")) for path in counts] == [
            "questions/first/anna.json",
            "questions/first/carol.json",
        ]
        assert used(deployed) == 0
        for kit in deployed.sites.values():
            assert not (kit / "spent" / "questions").exists()
        assert not list((deployed.server / "flare").rglob("questions"))

    def test_a_count_is_made_once_whatever_plan_and_kit_come_later(self, deployed):
        spent = deployed.server / "spent" / "questions" / PLAN.run / "anna.json"
        assert FileCounter(spent, "questions").spend(None, 7)
        again = add_plan(MORE, deployed.directory).kits
        assert again.server != deployed.server
        assert not (again.server / "spent" / "questions").exists(), "a new kit has no new count"
        assert load_site_settings(again.server).plans.accepted == (PLAN.fingerprint(), MORE.fingerprint())
        another = PLAN.model_copy(update={"run": "second", "clients": ("anna", "bob")})
        more = add_plan(another, deployed.directory).kits
        names = sorted(str(path.relative_to(more.server / "spent")) for path in (more.server / "spent").rglob("*.json"))
        assert names == ["questions/second/anna.json", "questions/second/bob.json"]

    def test_a_deployment_of_rounds_serves_later(self, tmp_path):
        rounds = RunPlan.model_validate({**TRAINED, "data": {"name": "npz", "sites": {"anna": {}, "carol": {}}}})
        before = deploy(rounds, server="localhost", output=tmp_path / "fed").kits
        after = add_plan(PLAN, tmp_path / "fed").kits
        assert sorted(after.sites) == ["anna", "auditor", "carol"]
        assert (after.server / "spent" / "questions" / "first" / "carol.json").exists()
        assert before.sites.keys() < after.sites.keys() and Kits.open(tmp_path / "fed") == after

    @pytest.mark.parametrize("name", ["first", "a/b/c", "../a/b", "a/../b", "/a", "a/", "", "a\n/b", ".a/b", "a/.b"])
    def test_a_project_file_cannot_make_counts_elsewhere(self, tmp_path, name):
        with pytest.raises(DeploymentError, match="RUN/CLIENT"):
            provision(Deployment("trial", "localhost", ["a"], questions=[name]), tmp_path / "fed")
        provision(Deployment("trial", "localhost", ["a"]), tmp_path / "fed2")
        with pytest.raises(DeploymentError, match="RUN/CLIENT"):
            extend(tmp_path / "fed2", questions=[name])
        assert not list(tmp_path.rglob("questions"))

    def test_every_kit_accepts_this_plan_and_no_larger_limit(self, deployed):
        for kit in (deployed.server, *deployed.sites.values()):
            settings = load_site_settings(kit)
            assert accepted_plan(KIND, PLAN.model_dump_json(), settings) == PLAN
            with pytest.raises(PlanNotAcceptedError):
                accepted_plan(KIND, MORE.model_dump_json(), settings)

    def test_a_plan_of_rounds_is_not_taken_for_one_of_serving(self, deployed, tmp_path):
        """The kind that a job names is its own word: fingerprints of two kinds are never the same."""
        from bilateral.runs.rounds.kind import KIND as ROUNDS

        settings = load_site_settings(deployed.server)
        with pytest.raises(PlanNotAcceptedError):
            accepted_plan(ROUNDS, PLAN.model_dump_json(), settings)
        rounds = RunPlan.model_validate(TRAINED)
        kits = deploy(rounds, server="localhost", output=tmp_path / "other").kits
        with pytest.raises(PlanNotAcceptedError):
            accepted_plan(KIND, rounds.model_dump_json(), load_site_settings(kits.server))

    def test_the_handbook_names_who_deals_who_asks_and_what_remains(self, deployed):
        text = (deployed.directory / "README.md").read_text()
        for words in (PLAN.fingerprint(), "auditor deals", "bilateral ask KIT", "runs/first", "(line 14)", "(line 17)"):
            assert words in text
        assert not has_references(PLAN.model_dump(mode="json"))
        assert 'kind = "serving"' in (deployed.directory / "plan.toml").read_text()


class TestServer:
    """Its side of a kit, without FLARE: what it opens, and when it does not."""

    class Nobody:
        def names(self):
            return []

    def opened(self, kits, plan=PLAN, **changes):
        from bilateral.engine.kind import ServerAround

        settings = load_site_settings(kits.server)
        around = ServerAround(
            "flare", "test", self.Nobody(), data_dir=settings.data_directory, kit=settings.around(), **changes
        )
        return KIND.server(plan, around)

    def test_it_serves_the_run_of_its_own_kit(self, deployed):
        assert self.opened(deployed).progress().num_steps == 80

    @pytest.mark.parametrize("lost", ["a file", "the folder", "all of spent"])
    def test_a_count_that_is_missing_is_spent_and_no_job_makes_it_anew(self, deployed, lost):
        folder = deployed.server / "spent" / "questions" / PLAN.run
        gone = {"a file": folder / "anna.json", "the folder": folder, "all of spent": deployed.server / "spent"}[lost]
        gone.unlink() if gone.is_file() else shutil.rmtree(gone)
        with pytest.raises(CheckpointError, match="counts as spent"):
            self.opened(deployed)
        assert not (folder / "anna.json").exists()

    def test_a_copy_of_the_run_has_no_count(self, deployed):
        """A job names a run of the server's; a second name for a model is no second budget."""
        shutil.copytree(deployed.server / "runs" / "first", deployed.server / "runs" / "again")
        with pytest.raises(CheckpointError, match="counts as spent"):
            self.opened(deployed, PLAN.model_copy(update={"run": "again"}))

    def test_a_client_that_has_no_kit_here_is_no_client(self, deployed):
        with pytest.raises((PlanError, CheckpointError)):
            self.opened(deployed, PLAN.model_copy(update={"clients": ("anna", "mallory")}))

    def test_a_job_says_neither_which_directory_is_served_nor_what_code_runs(self, deployed, tmp_path):
        """What a job brings besides an accepted plan is not looked at in a kit."""
        shutil.copytree(deployed.server / "runs" / "first", tmp_path / "elsewhere")
        found = self.opened(
            deployed, options={"run": str(tmp_path / "elsewhere"), "model": "os:system", "data": "os:system"}
        )
        assert found._counters["anna"]._path == deployed.server / "spent" / "questions" / "first" / "anna.json"

    def test_a_service_cannot_be_named_like_the_run_that_it_serves(self, deployed):
        with pytest.raises(CheckpointError, match="the directory of another plan"):
            RunDirectory.create_or_open(load_site_settings(deployed.server).run_directory("first"), PLAN)

    def test_only_those_who_have_a_part_are_known(self, deployed):
        alone = PLAN.model_copy(update={"clients": ("anna",)})
        assert set(self.opened(deployed, alone)._pinned) == {"anna", "auditor"}

    def test_a_run_of_ones_own_code_waits_for_the_operator(self, deployed):
        plan_file = deployed.server / "runs" / "first" / "plan.toml"
        plan_file.write_text(plan_file.read_text().replace('name = "mlp-3"', 'name = "os:system"'))
        with pytest.raises(PlanNotAcceptedError, match=r'"os:system".*under \[code\]'):
            self.opened(deployed)


class TestSites:
    def around(self, kits, name):
        from bilateral.engine.kind import SiteAround

        settings = load_site_settings(kits.sites[name])
        return SiteAround("test", kit=settings.around(settings.identity()))

    def test_the_doors_file_names_the_key_and_does_not_hold_it(self, deployed):
        kit = deployed.sites["anna"]
        with pytest.raises(DeploymentError, match="No service has come"):
            Kit.read(kit)
        door = KIND.site("anna", PLAN, self.around(deployed, "anna"))
        text = (kit / "asking" / "kit.json").read_text()
        secret = (kit / "identity.key").read_text().strip()
        assert secret not in text and secret == Kit.read(kit).identity
        assert oct((kit / "asking" / "kit.json").stat().st_mode)[-3:] == "600"
        door.close()

    def test_a_site_has_only_the_part_that_the_plan_gives_it(self, deployed):
        stranger = PLAN.model_copy(update={"clients": ("carol",)})
        with pytest.raises(PlanError, match="has no part"):
            KIND.site("anna", stranger, self.around(deployed, "anna"))
        assert not (deployed.sites["anna"] / "asking").exists()

    def test_a_key_that_others_can_read_is_not_used(self, deployed):
        door = KIND.site("anna", PLAN, self.around(deployed, "anna"))
        (deployed.sites["anna"] / "identity.key").chmod(0o644)
        with pytest.raises(DeploymentError, match="only its owner"):
            Kit.read(deployed.sites["anna"])
        door.close()
