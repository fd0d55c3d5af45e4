"""What a Tab offers: names that are there, in every shell, and before torch would have been loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_start_up import LARGE

from bilateral.cli import completion
from bilateral.cli.lazy_commands import imported
from bilateral.cli.main import app
from bilateral.data.registry import dataset_names
from bilateral.models.zoo import model_names
from bilateral.protections.registry import protection_names, word_of

CODE = """
import json, sys
from bilateral.cli.main import main
sys.argv = ["bilateral"]
try:
    main()
finally:
    sys.stderr.write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def asked(shell: str, line: str) -> tuple[list[str], set[str]]:
    """What `shell` is told for a line that was begun, and the packages that it took."""
    words = line.split(" ")
    variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, **variables, completion.VARIABLE: f"complete_{shell}"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packages = set(done.stderr.strip(' []"').split('", "'))
    assert "typer" in packages
    return done.stdout.splitlines(), packages


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_offered_the_protections_and_nothing_large_is_loaded_for_it(shell):
    lines, packages = asked(shell, "bilateral run --protection ")
    offered = "\n".join(lines)
    for name in protection_names():
        assert word_of(name) in offered
    assert not packages & LARGE


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bilateral pre", ["predict"]),
        ("bilateral run --model resnet-1", ["resnet-10", "resnet-11", "resnet-14", "resnet-18"]),
        ("bilateral run --data b", ["breast-cancer", "bank-marketing", "breakhis"]),
        ("bilateral run --loss b", ["bce"]),
        ("bilateral run --set training.lo", ["training.loss=", "training.local_steps=", "training.local_epochs="]),
        ("bilateral run --set perturbation.noise=o", ["perturbation.noise=offset"]),
        ("bilateral hetero --models mlp-3,len", ["mlp-3,lenet"]),
        ("bilateral audit --effort s", ["standard", "smoke"]),
        ("bilateral inspect len", ["lenet"]),
        ("bilateral schema ex", ["explain", "export"]),
        ("bilateral run --write", ["--write-plan"]),
        ("bilateral run --no-ref", ["--no-reference"]),
        ("bilateral run --quiet --loss ", ["auto", "mse", "ce", "bce", "huber"]),
    ],
)
def test_names_are_offered_as_far_as_they_were_typed(line, offered, monkeypatch, capsys):
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv(completion.VARIABLE, "complete_bash")
    with pytest.raises(SystemExit):
        app(prog_name="bilateral")
    assert sorted(capsys.readouterr().out.split()) == sorted(offered)


def test_the_names_in_the_table_are_those_that_commands_take():
    values = {kind: [word for word, _ in words] for kind, words in completion.table()["values"].items()}
    assert values["models"] == list(model_names())
    assert values["datasets"] == list(dataset_names())
    for name, command in imported(app).items():
        told = {option for one in completion.table()["commands"][name] for option in one["options"]}
        known = {option for one in command.params if one.param_type_name == "option" for option in one.opts}
        assert known <= {part for option in told for part in option.split("/")}
    for parameters in completion.table()["commands"].values():
        assert all(one["values"] is None or values[one["values"]] for one in parameters)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_script_that_is_shown_works_in_a_real_bash(tmp_path: Path):
    command = tmp_path / "bilateral"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom bilateral.cli.main import main\nsys.argv[0] = 'bilateral'\nmain()\n"
    )
    command.chmod(0o755)
    line = 'eval "$(bilateral --show-completion bash)"; COMP_WORDS=(bilateral run --loss h); COMP_CWORD=3; '
    line += '_bilateral_completion bilateral; printf "%s\\n" "${COMPREPLY[@]}"; complete -p bilateral'
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == "huber", done.stderr
    assert "_bilateral_completion" in done.stdout
