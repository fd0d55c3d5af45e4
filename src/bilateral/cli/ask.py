"""`bilateral ask`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from torch import Tensor

from bilateral.cli.any_kind import print_guarantee
from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.cli.options import DataDir, DataName, Json, Quiet, check_writable
from bilateral.cli.serve import RevealOption, checked_reveal
from bilateral.data import load_dataset
from bilateral.data.inputs import read_inputs
from bilateral.errors import DataError, DeploymentError, PlanError, QuestionLimitError
from bilateral.protocols.noise.round_counter import MemoryCounter
from bilateral.protocols.share.serving.terms import Reveal
from bilateral.randomness import SecureRandomness
from bilateral.serving.asking import AskingSession
from bilateral.serving.folder import Kit
from bilateral.serving.guarantee import serving_guarantee
from bilateral.serving.here import simulated_session
from bilateral.serving.messages import Service
from bilateral.serving.model import ServedModel
from bilateral.serving.server import Conditions
from bilateral.serving.sockets import Line, session_of

_UNLIMITED = 1 << 40
_SHOWN = 10


def ask_command(
    source: Annotated[
        Path, typer.Argument(metavar="KIT|RUN", help="A client's kit, or a run directory.", show_default=False)
    ],
    inputs: Annotated[
        Path | None, typer.Option(help="File with inputs: .npy, .npz or .csv, samples first.", show_default=False)
    ] = None,
    data: DataName = None,
    reveal: RevealOption = "logits",
    first: Annotated[int | None, typer.Option(help="Only the first so many inputs.", min=1, show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write answers as CSV, as they come.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last answer in --output.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="With RUN: package.module:function, if its model is your own.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask a served model about inputs of one's own: only who asks learns the answers, and nothing of the model else.

    With a kit: of the `bilateral serve` that gave it out. With a run directory: a simulation, in which all three
    parties are in this process, which sees everything; nothing is counted.

    Inputs are taken as they are: scale them as the training data were. `--data` asks about a data set's test split, and
    says how many answers are right.

    Examples:

      bilateral ask out --data digits --first 100

      bilateral ask out/serving/kits/client --data digits --reveal class

      bilateral ask kits/ward-3 --inputs mine.npy --output answers.csv

      bilateral ask kits/ward-3 --inputs mine.npy --output answers.csv --resume
    """
    revealed = checked_reveal(reveal)
    _check_output(output, resume)
    if (inputs is None) == (data is None):
        raise PlanError("Expected --inputs FILE or --data NAME.", remedy="Give one of them.")
    with _session(source, revealed, model, data, data_dir) as session:
        service = session.open()
        asked, targets = _inputs(session, inputs, data, data_dir, first)
        answers = _Answers(service, revealed, output, _done_before(output) if resume else 0)
        _check_enough(len(asked) - answers.done, service)
        try:
            interrupted = _ask_all(session, asked, answers, quiet=quiet)
        finally:  # an error in the middle, or a second Ctrl-C, loses no answer that is there
            if answers.parts or answers.done == len(asked):
                _print(session, answers, targets, is_simulation=_is_run(source), json=json)
    if interrupted:
        again = " Go on with the same command and --resume." if output else " Without --output, ask the rest anew."
        err.print(f"Stopped after {answers.done} of {len(asked)} questions.{again}")
        raise typer.Exit(130)


@dataclass
class _Answers:
    """Of the samples from `start` on; written as they come."""

    service: Service
    reveal: Reveal
    output: Path | None
    start: int

    def __post_init__(self) -> None:
        self.parts: list[Tensor] = []
        self.done = self.start

    def take(self, part: Tensor) -> None:
        if self.output is not None:
            self._write(part)
        self.parts.append(part)
        self.done += len(part)

    @property
    def found(self) -> Tensor:
        return torch.cat(self.parts) if self.parts else torch.zeros(0)

    def predicted(self, rows: Tensor) -> list[str]:
        """A label a row; none where there is one number an answer."""
        if self.reveal == "logits" and (rows.dim() < 2 or rows.shape[1] == 1):
            return []
        places = rows if self.reveal == "class" else rows.argmax(1)
        names = self.service.class_names
        return [names[place] if place < len(names) else str(place) for place in places.tolist()]

    def _write(self, part: Tensor) -> None:
        assert self.output is not None
        labels, begins = self.predicted(part), self.done == 0
        with self.output.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            outputs = part.tolist() if self.reveal == "logits" else [[] for _ in part]
            if begins:
                writer.writerow(["sample", *(["predicted"] if labels else []), *_columns(outputs)])
            for place, row in enumerate(outputs):
                writer.writerow([self.done + place, *(labels[place : place + 1]), *row])
            file.flush()
            os.fsync(file.fileno())


def _columns(rows: Sequence[Sequence[float]]) -> list[str]:
    return [f"output_{number}" for number in range(len(rows[0]))]


def _ask_all(session: AskingSession, asked: Tensor, answers: _Answers, *, quiet: bool) -> bool:
    """True if it was interrupted: what was asked by then is answered."""
    size = session.service.batch_size
    with (
        ProgressBar("questions", quiet=quiet) as bar,
        interruptible("Stopping after these questions; once more to stop at once.") as caught,
    ):
        while answers.done < len(asked) and not caught:
            answers.take(session.ask(asked[answers.done : answers.done + size], answers.reveal))
            limit = session.service.limit
            note = f"{session.used} of {limit} asked, ever" if limit < _UNLIMITED else "simulated"
            bar.update(answers.done, len(asked), note)
    return answers.done < len(asked)


@contextmanager
def _session(
    source: Path, reveal: Reveal, model: str | None, data: str | None, data_dir: Path | None
) -> Iterator[AskingSession]:
    if _is_run(source):
        served = ServedModel.of_run(
            source, ("bilateral", "ask", str(source)), data_dir=data_dir, model=model, data=data, reveal=reveal
        )
        yield simulated_session(served, Conditions(_UNLIMITED, reveal), MemoryCounter(), SecureRandomness())
        return
    kit = Kit.read(source)
    if kit.deals:
        raise DeploymentError(f"{source} is the dealer's kit.", remedy=f"Use it with `bilateral deal {source}`.")
    line = Line(kit)
    try:
        yield session_of(kit, line, SecureRandomness())
    finally:
        line.close()


def _is_run(source: Path) -> bool:
    return (source / "plan.toml").exists()


def _inputs(
    session: AskingSession, inputs: Path | None, data: str | None, data_dir: Path | None, first: int | None
) -> tuple[Tensor, Tensor | None]:
    shape = session.circuit.input_shape
    if inputs is not None:
        return read_inputs(inputs, shape)[:first], None
    assert data is not None
    test = load_dataset(data, data_dir).test
    if tuple(test.inputs.shape[1:]) != shape:
        raise DataError(
            f"The model takes samples of shape {shape}; {data} has {tuple(test.inputs.shape[1:])}.",
            remedy=f"Ask about data of the kind it was trained for ({session.service.dataset}).",
        )
    return test.inputs[:first].double(), test.targets[:first]


def _check_output(output: Path | None, resume: bool) -> None:
    if resume and (output is None or not output.exists()):
        raise PlanError("--resume goes on with the answers in --output.", remedy="Name the file that was begun.")
    if output is not None and output.exists() and not resume:
        raise PlanError(f"{output} already exists.", remedy="Go on with it by --resume, or choose another --output.")
    check_writable(output)


def _done_before(output: Path | None) -> int:
    """So many answers are in the file; a line that was cut off is taken out."""
    assert output is not None
    text = output.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        output.write_bytes(whole)
    return max(0, whole.count(b"\n") - 1)


def _check_enough(wanted: int, service: Service) -> None:
    left = max(0, service.limit - service.used)
    if wanted > left:
        raise QuestionLimitError(
            f"These are {wanted} questions; {left} of {service.limit} are left. Nothing was asked.",
            remedy=f"Ask with --first {left}." if left else "Agree on more with who runs `bilateral serve`.",
        )


def _print(
    session: AskingSession, answers: _Answers, targets: Tensor | None, *, is_simulation: bool, json: bool
) -> None:
    service, found = session.service, answers.found
    metrics = _metrics(answers, targets)
    guarantee = serving_guarantee(service.dealer, session.circuit, answers.reveal, service.limit).as_dict()
    used = None if is_simulation else {"used": session.used, "limit": service.limit}
    if json:
        labels = answers.predicted(found)
        values: dict[str, Any] = {
            "samples": answers.done,
            "reveal": answers.reveal,
            "first_sample": answers.start,
            "predicted": labels,
            "outputs": found.tolist() if answers.reveal == "logits" else None,
            "metrics": metrics,
            "questions": used,
            "simulation": is_simulation,
            "output": str(answers.output) if answers.output else None,
            "guarantee": guarantee,
        }
        print_json(values)
        return
    _print_rows(answers, found)
    for name, value in metrics.items():
        out.print(f"[bold]{name}[/] {value:.4f}")
    if answers.output is not None:
        out.print(escape(f"{answers.done} answers are in {answers.output}"))
    if used is not None:
        out.print(f"{session.used} of {service.limit} questions asked, ever.")
    if is_simulation:
        out.print(
            "This was a simulation: client, server and dealer were in this process, which sees everything. "
            "`bilateral serve` keeps them apart.",
        )
    else:
        print_guarantee(guarantee)


def _print_rows(answers: _Answers, found: Tensor) -> None:
    labels = answers.predicted(found[:_SHOWN])
    for place, row in enumerate(found[:_SHOWN]):
        numbers = " ".join(f"{value:9.4f}" for value in row.tolist()) if answers.reveal == "logits" else ""
        label = escape(labels[place]) if labels else ""
        out.print(f"{answers.start + place:6d}  [bold]{label}[/]  [dim]{numbers}[/]")
    if len(found) > _SHOWN:
        out.print(f"   ... and {len(found) - _SHOWN} more" + ("" if answers.output else " (--output, --json)"))


def _metrics(answers: _Answers, targets: Tensor | None) -> dict[str, float]:
    if targets is None or not answers.parts:
        return {}
    wanted = targets[answers.start : answers.done]
    if wanted.is_floating_point():
        if answers.reveal == "class":
            return {}
        return {"test_mse": float((answers.found.reshape(wanted.shape) - wanted.double()).square().mean())}
    places = answers.found if answers.reveal == "class" else answers.found.argmax(1)
    return {"test_accuracy": float((places == wanted).double().mean())}
