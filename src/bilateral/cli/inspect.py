"""`bilateral inspect`."""

from __future__ import annotations

from typing import Annotated, cast

import torch
import typer
from rich.markup import escape
from rich.table import Table

from bilateral.cli.console import out, print_json
from bilateral.cli.options import Json, parse_setting, parse_shape
from bilateral.engine.suitability import Suitability, suitability
from bilateral.errors import ModelError, PlanError
from bilateral.models.builder import NormInputs
from bilateral.models.coverage import Coverage, inspect
from bilateral.models.zoo import build_model

ASSUMED_SHAPE = "3,32,32"


def inspect_command(
    model: Annotated[str, typer.Argument(help="Model of the zoo, or package.module:function.")],
    input_shape: Annotated[str | None, typer.Option(help="Shape of one sample.", show_default=ASSUMED_SHAPE)] = None,
    outputs: Annotated[int, typer.Option(help="Number of outputs.")] = 10,
    option: Annotated[
        list[str] | None, typer.Option(help="Model option, e.g. --option batch_norm=false", show_default=False)
    ] = None,
    norm_inputs: Annotated[
        str, typer.Option(help="As perturbation.norm_inputs of the plan: exact or scaled.")
    ] = "exact",
    integers: Annotated[
        bool, typer.Option("--integers", help="Inputs are integers: tokens, categories (nn.Embedding).")
    ] = False,
    json: Json = False,
) -> None:
    """Which protections take a model, and what perturbation hides of it, parameter by parameter.

    scaled: elements with a secret factor. movable: elements that change place every round. clear: elements whose value
    a client reads as it is. fedsgd and masks take any module: of what perturbation refuses, the reason is printed.

    Examples:

      bilateral inspect resnet-20

      bilateral inspect my_package.nets:build --input-shape 1,28,28 --outputs 2

      bilateral inspect my_package.nets:transformer --input-shape 128 --integers
    """
    shape = parse_shape(input_shape or ASSUMED_SHAPE)
    options = dict(parse_setting(text) for text in option or [])
    wanted = _norm_inputs(norm_inputs)
    found: Coverage | None = None
    try:
        built = build_model(model, input_shape=shape, num_outputs=outputs, **options)
        examples = torch.zeros(2, *shape, dtype=torch.int64 if integers else torch.float32)
        takers = suitability(built, examples, outputs)
        try:
            found = inspect(built, examples, norm_inputs=wanted)
        except ModelError:
            if not any(one.takes_it for one in takers):
                raise
    except ModelError as error:
        if input_shape is not None:
            raise
        remedy = f"Samples of shape {ASSUMED_SHAPE} are assumed: give --input-shape if yours have another."
        raise ModelError(str(error), remedy=remedy) from error
    if json:
        told = [{"protection": one.protection, "refusal": one.refusal} for one in takers]
        print_json({**(found.as_dict() if found is not None else {}), "protections": told})
        return
    if found is not None:
        _print_coverage(model, found)
    _print_takers(takers)


def _print_takers(takers: tuple[Suitability, ...]) -> None:
    out.print()
    table = Table(box=None, header_style="bold")
    table.add_column("protection", no_wrap=True)
    table.add_column("takes this network", overflow="fold")
    for one in takers:
        table.add_row(one.protection, "yes" if one.takes_it else f"no: {escape(one.refusal)}")
    out.print(table)


def _norm_inputs(text: str) -> NormInputs:
    if text in ("exact", "scaled"):
        return cast(NormInputs, text)
    raise PlanError(
        f"Expected --norm-inputs exact or scaled, got {text!r}.", remedy="Leave it out: exact is what plans have."
    )


def _print_coverage(model: str, found: Coverage) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("parameter", "kind", "shape", "scaled", "movable", "clear", "remark"):
        table.add_column(
            column,
            justify="right" if column in {"scaled", "movable", "clear"} else "left",
            overflow="fold",
            no_wrap=column != "remark",
        )
    for row in found.rows:
        table.add_row(
            row.name,
            row.kind,
            "x".join(map(str, row.shape)),
            _share(row.num_scaled, row.num_elements),
            _share(row.num_moved, row.num_elements),
            _share(row.num_clear, row.num_elements),
            row.remark,
        )
    out.print(table)
    out.print(
        f"\n[bold]{model}[/]: {found.num_parameters:,} parameters, "
        f"{100 * found.fraction_clear:.3g} % of them in the clear; {found.num_scale_factors:,} secret scale factors; "
        f"{found.num_movable_channels:,} of {found.num_hidden_channels:,} hidden channels change places every round."
    )
    out.print("The function the model computes is not hidden (docs/leakage-ledger.md, line 1).")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
