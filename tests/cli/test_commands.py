"""Each command does what its help says."""

import json

import pytest

from bilateral import RunPlan, run
from bilateral.cli.run_result import print_result
from bilateral.engine.plan import load_plan

QUICK = (
    "--data", "breast-cancer", "--model", "mlp-3", "--clients", 3, "--rounds", 4, "--set", "model.options={width = 8}",
)  # fmt: skip


def test_run_prints_the_documented_object(bilateral):
    outcome = bilateral("run", *QUICK, "--json", "--quiet")
    assert outcome.code == 0
    keys = {
        "metric", "metric_value", "rounds", "seconds", "megabytes_up", "megabytes_down", "difference_to_fedavg",
        "guarantee", "output",
    }  # fmt: skip
    assert keys <= set(outcome.json)
    assert outcome.json["difference_to_fedavg"] < 2e-6
    assert outcome.err == ""


def test_run_tells_a_person_what_it_did_and_what_leaks(bilateral):
    outcome = bilateral("run", *QUICK, "--output", "out")
    for words in ("test_accuracy", "FedSGD", "sent up / down", "what a client saw", "does not hide", "Results: out"):
        assert words in outcome.out
    assert "4/4" in outcome.err  # progress without a terminal is lines on standard error


def test_resuming_a_finished_run_reports_it_again(bilateral):
    first = bilateral("run", *QUICK, "--output", "out", "--json", "--quiet").json
    again = bilateral("run", "--resume", "out", "--json", "--quiet").json
    assert again["metrics"] == first["metrics"]
    assert again["rounds"] == 4


def test_a_written_plan_can_be_run(bilateral):
    assert bilateral("run", *QUICK, "--write-plan", "plan.toml").code == 0
    assert bilateral("run", "plan.toml", "--json", "--quiet").json["rounds"] == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"perturbation.norm_inputs": "scaled"}, "not so with perturbation.norm_inputs = exact, or a smaller eps"),
        ({}, "training.dtype = float64 takes it away"),
        ({"training.dtype": "float64"}, None),
    ],
)
def test_a_difference_to_fedsgd_is_explained_where_it_is_printed_with_its_remedy(capsys, settings, said):
    small = {"data.name": "breast-cancer", "model.name": "mlp-3", "training.rounds": 1, "model.options": {"width": 4}}
    plan = RunPlan().with_settings({**small, **settings})
    values = run(plan, save=False).as_dict()
    print_result({**values, "difference_to_fedavg": 0.02}, plan)
    large = " ".join(capsys.readouterr().out.split())
    print_result(values, plan)
    tiny = " ".join(capsys.readouterr().out.split())
    assert (said in large) if said else not any(words in large for words in ("eps", "float64"))
    assert "2.0e-02" in large
    assert not any(words in tiny for words in ("eps", "float64"))


def test_compare_prints_the_documented_rows(bilateral):
    outcome = bilateral("compare", *QUICK[:4], "--clients", 1, "--clients", 2, "--rounds", 2, "--json", "--quiet")
    rows = outcome.json["rows"]
    keys = {
        "dataset", "model", "clients", "loss", "protection", "seed", "metric", "metric_value",
        "weights_relative_difference", "seconds_ratio", "bytes_ratio",
    }  # fmt: skip
    assert all(keys <= set(row) for row in rows)
    assert [row["clients"] for row in rows] == [1] * 4 + [2] * 7
    assert "perturbation-offset" in bilateral("compare", *QUICK, "--quiet").out


def test_inspect_shows_what_is_in_the_clear(bilateral):
    outcome = bilateral("inspect", "resnet-20", "--json")
    clear = {row["name"]: row["clear"] for row in outcome.json["rows"] if row["clear"]}
    assert clear == {"stem.conv.weight": 432, "head.bias": 10}
    scaled = bilateral("inspect", "resnet-20", "--norm-inputs", "scaled", "--json")
    assert {row["name"] for row in scaled.json["rows"] if row["clear"]} == {"head.bias"}
    assert bilateral("inspect", "resnet-20", "--norm-inputs", "loose").code == 2
    assert "in the clear" in bilateral("inspect", "lenet", "--input-shape", "1,8,8").out


def test_inspect_takes_model_options(bilateral):
    outcome = bilateral("inspect", "resnet-8", "--option", "batch_norm=false", "--json")
    assert not any("norm" in row["kind"] for row in outcome.json["rows"])
    assert any("norm" in row["kind"] for row in bilateral("inspect", "resnet-8", "--json").json["rows"])


def test_export_then_predict_gives_the_metrics_of_the_run(bilateral):
    run = bilateral("run", *QUICK, "--output", "out", "--json", "--quiet").json
    assert bilateral("export", "out", "--output", "m.safetensors").code == 0
    predicted = bilateral("predict", "m.safetensors", "--output", "p.csv", "--json").json
    assert predicted["metrics"]["test_accuracy"] == run["metrics"]["test_accuracy"]
    assert predicted["samples"] == 114


def test_predictions_are_written_with_class_names(bilateral, tmp_path):
    bilateral("run", *QUICK, "--output", "out", "--quiet")
    bilateral("export", "out")
    bilateral("predict", "model.safetensors", "--output", "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "sample,predicted,output_0,output_1"
    assert lines[1].split(",")[1] in {"malignant", "benign"}


def test_a_users_model_in_the_current_folder_is_found(bilateral, tmp_path):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def build(input_shape, num_outputs):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], 6), nn.ReLU(), nn.Linear(6, num_outputs))\n"
    )
    outcome = bilateral("run", "--data", "wine", "--model", "my_nets:build", "--rounds", 2, "--json", "--quiet")
    assert outcome.code == 0, outcome.err


COMMANDS = (
    "run", "watch", "deploy", "submit", "sites", "compare", "inspect", "privacy", "export", "predict", "serve", "ask",
    "deal", "bench",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(bilateral, command):
    outcome = bilateral(command, "--help")
    assert outcome.code == 0
    assert "Examples" in outcome.out


def test_version_is_printed(bilateral):
    assert bilateral("--version").out.startswith("bilateral ")


def test_results_on_disk_equal_what_is_printed(bilateral, tmp_path):
    printed = bilateral("run", *QUICK, "--output", "out", "--json", "--quiet").json
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == printed


def test_sites_are_clients_without_counting_them(bilateral, tmp_path):
    (tmp_path / "sites.py").write_text(
        "import torch\n"
        "from bilateral.data import Dataset, Split\n"
        "def load():\n"
        "    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))\n"
        "    y = (x[:, 0] > 0).long()\n"
        "    return Dataset('s', 'classification', Split(x, y, ('north', 'south', 'west') * 10), Split(x, y), 2)\n"
    )
    words = ("--data", "sites:load", "--model", "mlp-3", "--rounds", 2, "--set", "federation.partition=site")
    assert bilateral("run", *words, "--json", "--quiet").code == 0


SOUND = ("--data", "breast-cancer", "--model", "mlp-3", "--loss", "mse", "--clients", 3, "--rounds", 20)


def test_privacy_says_that_a_plan_without_noise_claims_nothing(bilateral):
    outcome = bilateral("privacy", *QUICK)
    assert outcome.code == 0
    assert "epsilon is infinite" in outcome.out
    assert bilateral("privacy", *QUICK, "--json").json["status"] == "none"


def test_privacy_solves_for_noise_and_its_answer_spends_the_budget(bilateral):
    solved = bilateral("privacy", *SOUND, "--epsilon", 8, "--json").json
    assert solved["status"] == "sound"
    assert 7.8 < solved["rows"][0]["epsilon"] <= 8
    multiplier = solved["deviations"]["noise multiplier"]
    spent = bilateral("privacy", *SOUND, "--noise-multiplier", multiplier, "--json").json
    assert spent["rows"][0]["epsilon"] == pytest.approx(solved["rows"][0]["epsilon"])


def test_privacy_says_plainly_what_is_sound_and_what_is_conditional(bilateral):
    assert "SOUND" in bilateral("privacy", *SOUND, "--noise-multiplier", 2).out
    outcome = bilateral("privacy", *SOUND, "--mechanism", "published", "--epsilon", 3)
    assert "PUBLISHED, CONDITIONAL" in outcome.out
    assert "lines 3 and 4" in outcome.out


def test_privacy_of_a_plan_can_be_given_another_budget(bilateral):
    assert bilateral("run", *SOUND, "--epsilon", 8, "--write-plan", "plan.toml").code == 0
    outcome = bilateral("privacy", "plan.toml", "--noise-multiplier", 3, "--json").json
    assert outcome["deviations"]["noise multiplier"] == 3


def test_an_unsound_mix_is_one_message_with_a_remedy(bilateral):
    blinded = ("--set", "protection=perturbation", "--set", "perturbation.softmax=blinded")
    outcome = bilateral("privacy", "--epsilon", 3, *blinded)
    assert outcome.code == 2
    assert "Refused, sound noise with the published exchange of cross entropy" in outcome.err
    assert "perturbation.softmax = 'local'" in outcome.err


def test_run_with_dropouts_reports_failed_rounds(bilateral):
    outcome = bilateral("run", *QUICK[:4], "--clients", 5, "--rounds", 8, "--dropout", 0.5, "--json", "--quiet")
    assert outcome.code == 0
    assert outcome.json["rounds_failed"]
    assert outcome.json["difference_to_fedavg"] < 2e-6
    shown = bilateral("run", *QUICK[:4], "--clients", 5, "--rounds", 8, "--dropout", 0.5, "--quiet").out
    assert "rounds without enough clients" in shown


def test_run_with_a_budget_says_what_it_spent(bilateral):
    outcome = bilateral("run", *SOUND, "--noise", "offset", "--epsilon", 8, "--quiet")
    assert "epsilon 8 in total" in outcome.out
    assert "ring masks" in outcome.out


def test_a_budget_alone_is_a_sound_run_and_privacy_agrees_with_it(bilateral):
    """Nobody chose what a budget would be refused for. Both commands make the same plan, and its report the same."""
    written = bilateral("run", "--epsilon", 8, "--write-plan", "plan.toml")
    assert written.code == 0
    alone, planned = (bilateral("privacy", *given, "--json").json for given in (("--epsilon", 8), ("plan.toml",)))
    assert alone == planned
    assert alone["status"] == "sound"
    assert 7.8 < alone["rows"][0]["epsilon"] <= 8


def test_a_budget_alone_trains_beside_fedsgd_and_spends_what_it_says(bilateral):
    outcome = bilateral("run", "--epsilon", 8, "--rounds", 3, "--json", "--quiet").json
    assert outcome["metrics"]["test_accuracy"] > 0
    assert outcome["metrics_of_fedavg"]["test_accuracy"] > 0
    assert "masks" in outcome["guarantee"]["protection"]
    assert "SOUND" in bilateral("privacy", "--epsilon", 8, "--rounds", 3).out


@pytest.mark.long
def test_a_budget_of_eight_costs_the_digits_a_few_points(bilateral):
    outcome = bilateral("run", "--epsilon", 8, "--json", "--quiet").json
    assert outcome["metrics"]["test_accuracy"] > 0.88
    assert outcome["metrics_of_fedavg"]["test_accuracy"] - outcome["metrics"]["test_accuracy"] < 0.1


@pytest.mark.parametrize(
    ("given", "protection"),
    [
        (("--data", "breast-cancer"), "masks"),
        (("--loss", "ce"), "masks"),
        (("--loss", "mse"), "perturbation"),
        (("--protection", "fedsgd"), "fedavg"),
        (("--noise", "offset"), "perturbation"),
        (("--set", "perturbation.partitions=2"), "perturbation"),
    ],
)
def test_who_says_what_noise_is_added_to_is_taken_at_their_word(bilateral, given, protection):
    assert bilateral("run", "--epsilon", 8, *given, "--write-plan", "plan.toml").code == 0
    plan = load_plan("plan.toml")
    assert plan.protection == protection
    assert (plan.model.name == "mlp-3") == (protection == "masks")


def test_what_is_said_of_training_is_kept_beside_a_budget(bilateral):
    given = ("--rounds", 7, "--model", "lenet", "--set", "training.learning_rate=0.05")
    assert bilateral("run", "--epsilon", 8, *given, "--write-plan", "plan.toml").code == 0
    plan = load_plan("plan.toml")
    assert (plan.training.rounds, plan.model.name, plan.training.learning_rate) == (7, "lenet", 0.05)
    assert (plan.protection, plan.training.batch_size) == ("masks", 128)
