"""`bilateral export` and `bilateral predict`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from bilateral.cli.console import err, out, print_json
from bilateral.cli.options import DataDir, Json, check_writable
from bilateral.data import load_dataset
from bilateral.data.task import Task
from bilateral.engine.named_code import check_named_by_user, is_own_code
from bilateral.engine.plan import load_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import read_run
from bilateral.engine.run_story import RunState
from bilateral.errors import DataError, PlanError
from bilateral.learning.evaluation import evaluate
from bilateral.protocols.objective import Objective, make_objective
from bilateral.runs.rounds.export import export_run, load_exported


def export_command(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Target: .safetensors, .onnx or .pt2 (torch.export).")
    ] = Path("model.safetensors"),
    model: Annotated[
        str | None,
        typer.Option(help="package.module:function, if the run's model is your own.", show_default=False),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="package.module:function, if the run's data are.", show_default=False)
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="package.module:function, if the run's loss is.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write a run's model for inference: exact predictions, scaled and permuted parameters.

    Examples:

      bilateral run --output out

      bilateral export out --output model.safetensors

      bilateral export out --output model.onnx

      bilateral export out --model my_project:build --data my_project:load
    """
    RunDirectory.open(run, load_plan)  # what is read comes first: an output is chosen for it
    check_writable(output)
    card = export_run(run, output, data_dir=data_dir, model=model, data=data, loss=loss)
    status = read_run(run)
    if status.round < status.num_rounds and status.state is not RunState.FINISHED:
        err.print(f"This is the model after {status.unit} {status.round} of {status.num_rounds}: the run is not done.")
    if json:
        print_json({"output": str(output), "model": card.model, "metrics": card.metrics})
    else:
        out.print(escape(f"{card.model} for {card.dataset} written to {output}"))


def predict_command(
    model: Annotated[Path, typer.Argument(help="Exported model (.safetensors).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write predictions as CSV.", show_default=False)
    ] = None,
    builder: Annotated[
        str | None,
        typer.Option("--model", help="package.module:function, if the model is your own.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Data set whose test split to predict.", show_default="the one it was trained for"),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Predict with an exported model and report how good it is.

    Examples:

      bilateral predict model.safetensors

      bilateral predict model.safetensors --output predictions.csv
    """
    if output is not None and output.exists():
        raise PlanError(f"{output} already exists.", remedy="Choose another --output; nothing was overwritten.")
    check_writable(output)
    exported = load_exported(model, builder=builder)
    card = exported.card
    check_named_by_user(model, "data", card.dataset if data is None else "", None)
    options = card.dataset_options if data in (None, card.dataset) else {}
    dataset = load_dataset(data or card.dataset, data_dir, **options)
    if dataset.input_shape != card.input_shape or dataset.num_outputs != card.num_outputs:
        raise DataError(
            f"The model takes {card.input_shape} and gives {card.num_outputs} outputs; {dataset.name} has "
            f"{dataset.input_shape} and {dataset.num_outputs}.",
            remedy="Predict on data of the kind it was trained for.",
        )
    if dataset.train.form != card.form:
        raise DataError(
            f"The model takes {card.form or 'one tensor'}; {dataset.name} has {dataset.train.form or 'one tensor'}.",
            remedy="Predict on data of the kind it was trained for.",
        )
    test = dataset.test.cast(getattr(torch, card.dtype))
    metrics = evaluate(exported.model, test, _objective(card.loss, dataset.task))
    if output is not None:
        with torch.no_grad():
            _write_predictions(exported.model(test.inputs), card.class_names, output)
    if json:
        print_json({"samples": len(test), "metrics": metrics, "output": str(output) if output else None})
        return
    for name, value in metrics.items():
        out.print(f"[bold]{name}[/] {value:.4f}")
    if output is not None:
        out.print(escape(f"{len(test)} predictions written to {output}"))


def _objective(loss: str, task: Task) -> Objective:
    """What the model was trained for; a function that only a file names is not run, and the usual loss is told."""
    return make_objective("auto" if is_own_code(loss) else loss, task)


def _write_predictions(outputs: torch.Tensor, class_names: tuple[str, ...], target: Path) -> None:
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = [f"output_{i}" for i in range(outputs.shape[1])]
        single = outputs.shape[1] == 1
        writer.writerow(["sample", *([] if single else ["predicted"]), *columns])
        for index, row in enumerate(outputs.tolist()):
            best = max(range(len(row)), key=row.__getitem__)
            label = class_names[best] if class_names else str(best)
            writer.writerow([index, *([] if single else [label]), *row])
