"""Exported models on disk: one safetensors file that says by itself how to rebuild the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.engine.checkpoint import Checkpoint, load_checkpoint
from bilateral.engine.federation import Federation, load_server_view
from bilateral.engine.named_code import check_named, check_named_by_user, is_own_code
from bilateral.engine.plan import RunPlan, load_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.setup import analyse, initial_model, layout_of
from bilateral.engine.stack import checked_mix
from bilateral.engine.tensor_file import read_tensor_file
from bilateral.errors import CheckpointError, ModelError, PlanError
from bilateral.learning.evaluation import evaluate
from bilateral.learning.problem import Problem
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model, outline_model
from bilateral.protections.combination import name_of
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.protocols.perturb.recovery_check import check_export
from bilateral.randomness import SecureRandomness
from bilateral.runs.rounds.best import best_of
from bilateral.runs.rounds.export_card import FORMAT, ExportCard, parse_card


@dataclass(frozen=True)
class Exported:
    """A loaded export: a module in evaluation mode and its card."""

    model: nn.Module
    card: ExportCard


@checked
def export_run(
    run_directory: str | Path,
    target: str | Path,
    *,
    data_dir: str | Path | None = None,
    model: str | None = None,
    data: str | None = None,
    loss: str | None = None,
) -> ExportCard:
    """Export the model of a run: fresh secrets from the operating system, no additive noise.

    A network that perturbation does not take is exported as it is; every client of such a run has seen it anyway.

    The format follows the ending of `target`: .safetensors, .onnx, or .pt2 (torch.export). A run of a user's own
    functions needs them named again, as `model`, `data` and `loss`: a directory never decides what code runs. A run
    without a single round that succeeded is refused.
    """
    run_directory, target = Path(run_directory), Path(target)
    RunDirectory.open(run_directory, load_plan)  # what is read comes first: a target is chosen for it
    if target.exists():
        raise PlanError(f"{target} already exists.", remedy="Choose another --output; nothing was overwritten.")
    writer = _WRITERS.get(target.suffix)
    if writer is None:
        raise PlanError(f"Expected an output ending in {', '.join(_WRITERS)}, got {target.name}.")
    command = ("bilateral", "export", str(run_directory), "--output", str(target))
    trained = trained_network(run_directory, command, data_dir=data_dir, model=model, data=data, loss=loss)
    plan, view, network, graph = trained.plan, trained.view, trained.network, trained.graph
    if view.problem.form is not None and target.suffix != ".safetensors":
        raise PlanError(
            f"A model of several inputs, {view.problem.form}, is not written as {target.suffix}.",
            remedy="Choose an --output that ends in .safetensors, and export that module with torch.",
        )
    if graph is not None:
        check_export(network, graph, view.problem.examples)
        chosen = plan.perturbation
        state = perturbed_state(
            network, graph, SecureRandomness(), scale_range=chosen.scale_range, permute=chosen.permute
        )
        network.load_state_dict(state)
    network.eval()
    card = _card(plan, view.problem, evaluate(network, view.test_data, view.problem.objective))
    writer(network, card, target)
    return card


@dataclass(frozen=True, repr=False)
class TrainedNetwork:
    """The server's model of a run, as it is in the last checkpoint, and what the server opens besides."""

    plan: RunPlan
    view: Federation
    network: nn.Module
    graph: ScaleGraph | None
    """None: perturbation does not take this network, and the run's protection shows it to clients as it is."""
    protection: str


def trained_network(
    run_directory: Path,
    command: Sequence[str],
    *,
    data_dir: str | Path | None = None,
    data_settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    data: str | None = None,
    loss: str | None = None,
) -> TrainedNetwork:
    """Of a run of any protection; one without a single round that succeeded is refused.

    `model`, `data`, `loss`: a user's own functions, named again for this; `command` is what a refusal tells to name
    them with. `data_settings`: loader options of this machine.
    """
    directory, plan = RunDirectory.open(run_directory, load_plan)
    check_named(directory.path, plan, (model, data, loss), command)
    checkpoint = load_checkpoint(directory.checkpoint)
    if checkpoint.plan_digest != plan.digest():
        raise CheckpointError(
            f"{directory.path} holds a checkpoint of another plan than its plan.toml.",
            remedy="Put the run's own plan.toml back.",
        )
    _check_trained(checkpoint, directory.path)
    view = load_server_view(plan, None if data_dir is None else Path(data_dir), data_settings)
    network = initial_model(plan, view.problem)
    layout, graph = layout_of(plan, network, view.problem), _export_graph(plan, network, view.problem)
    trained = name_of(checked_mix(plan, view.problem.objective, len(view.members), layout))
    _restore_model(network, checkpoint, f"{trained}/model/", directory.checkpoint)
    return TrainedNetwork(plan, view, network, graph, trained)


def _export_graph(plan: RunPlan, network: nn.Module, problem: Problem) -> ScaleGraph | None:
    """With scaled norm inputs: in evaluation mode the running variance takes eps up, which is exact."""
    try:
        return analyse(network, problem, "scaled")
    except ModelError:
        if plan.traits.needs_trace:
            raise
        return None


def _check_trained(checkpoint: Checkpoint, path: Path) -> None:
    """Refuse a model that is as it began: nobody exports one on purpose."""
    failed = checkpoint.failed
    if checkpoint.next_round > len(failed):
        return
    count = {0: "No round is done", 1: "The only round failed"}.get(len(failed), f"All {len(failed)} rounds failed")
    why = f"; the last one so: {failed[-1]['reason']}" if failed else "."
    raise CheckpointError(
        f"{count} in {path}, so its model is untrained{why}",
        remedy="Name a run in which at least one round was done.",
    )


def _restore_model(model: nn.Module, checkpoint: Checkpoint, prefix: str, path: Path) -> None:
    """The best model that was kept, or the last: an export needs no secrets, and nobody's data but the server's."""
    tensors = best_of(checkpoint.tensors) or {
        name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)
    }
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} holds another model than the plan: {error}.", remedy="Put the run's own plan.toml back."
        ) from error


def _card(plan: RunPlan, problem: Problem, metrics: dict[str, float]) -> ExportCard:
    return ExportCard(
        FORMAT,
        plan.model.name,
        dict(plan.model.options),
        problem.input_shape,
        problem.num_outputs,
        plan.training.dtype,
        plan.data.name,
        {**plan.data.options, **plan.data.server},
        problem.task,
        problem.loss,
        problem.class_names,
        metrics,
        () if problem.form is None else problem.form.parts,
    )


def _write_safetensors(model: nn.Module, card: ExportCard, target: Path) -> None:
    tensors = {name: t.clone().contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, target, metadata={"bilateral": json.dumps(asdict(card))})


def _example(card: ExportCard) -> Tensor:
    return torch.zeros((2, *card.input_shape), dtype=getattr(torch, card.dtype))


def _write_program(model: nn.Module, card: ExportCard, target: Path) -> None:
    """A `torch.export` program: loads without this package and without the model's Python code."""
    program = torch.export.export(model, (_example(card),), dynamic_shapes=({0: _batch()},))
    torch.export.save(program, target, extra_files={"bilateral.json": json.dumps(asdict(card))})


def _batch() -> Any:
    return torch.export.Dim("batch", min=1)


def _write_onnx(model: nn.Module, card: ExportCard, target: Path) -> None:
    try:
        import onnx  # noqa: F401, PLC0415 (an optional extra)
    except ImportError as error:
        raise PlanError("Export to ONNX needs the extra `onnx`.", remedy="pip install 'bilateral[onnx]'") from error
    torch.onnx.export(
        model,
        (_example(card),),
        str(target),
        input_names=["inputs"],
        output_names=["outputs"],
        dynamic_shapes=({0: _batch()},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


_WRITERS: dict[str, Callable[[nn.Module, ExportCard, Path], None]] = {
    ".safetensors": _write_safetensors,
    ".onnx": _write_onnx,
    ".pt2": _write_program,
}


@checked
def load_exported(path: str | Path, *, builder: str | None = None) -> Exported:
    """Rebuild an exported network from its safetensors file.

    A file never decides what code runs: if the network was built by a user's `package.module:function`, the caller
    must name that function as `builder`. Nor does it decide how much memory is taken: a network of ours is built
    without numbers first, and must have the tensors that are in the file. (A function of the caller's own is called
    with the shapes and options of the file as they are.) Whatever does not fit is a `CheckpointError`.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"There is no exported model at {path}.", remedy="Make one with `bilateral export`.")
    if path.suffix in (".onnx", ".pt2"):
        reader = "onnxruntime" if path.suffix == ".onnx" else "torch.export.load"
        raise CheckpointError(
            f"{path} is for other programs ({reader}); it is not read here.",
            remedy="Export the run once more, with --output model.safetensors.",
        )
    try:
        file = read_tensor_file(path)
        card = parse_card(file.text("bilateral"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not an exported model: {error}.", remedy="Export the run again.") from error
    check_named_by_user(path, "model", card.model, builder)
    shape = card.input_shape if card.form is None else card.form.shapes
    shapes: dict[str, Any] = {"input_shape": shape, "num_outputs": card.num_outputs}
    dtype = getattr(torch, card.dtype)
    try:
        if not is_own_code(card.model):
            _check_fit(outline_model(card.model, **shapes, **card.model_options).to(dtype), file.tensors)
        model = build_model(card.model, **shapes, **card.model_options).to(dtype)
        _check_fit(model, file.tensors)
        model.load_state_dict(file.tensors)
        if card.form is not None:
            card.form.attach(model)
    except (ValueError, TypeError, RuntimeError, ModelError) as error:
        raise CheckpointError(
            f"{path} does not fit its own architecture: {str(error)[:1000]}", remedy="Export the run again."
        ) from error
    return Exported(model.eval(), card)


def _check_fit(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors other than the network's own: their names, shapes and kinds of numbers."""
    own = model.state_dict()
    if own.keys() != tensors.keys():
        raise ValueError(f"the network has {len(own)} tensors, the file {len(tensors)}, and not of the same names.")
    for name, tensor in own.items():
        found = tensors[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} in the network, and {found.dtype} of shape "
                f"{tuple(found.shape)} in the file."
            )
