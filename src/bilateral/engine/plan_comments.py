"""A plan as TOML for people: every setting, also those that are not set, each with a line on what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_SAID: Final[dict[str, str]] = {
    "seed": "decides the deal of the data, initial weights, batches and, in a simulation, secrets",
    "protection": "what hides what from whom: `bilateral ladder`",
    "data.name": "a known set, or package.module:function that returns a Dataset",
    "data.options": "what the loader is called with",
    "data.sites": "[data.sites.NAME]: a site with data of its own, and its options",
    "data.server": "options for the set that the server evaluates on, beside data.sites",
    "model.name": "a network of the zoo, or package.module:function that returns an nn.Module",
    "model.options": "what its builder is called with",
    "federation.clients": "how many; by default 5, or one a site",
    "federation.partition": "how one set is dealt to them",
    "federation.proportions": "share of the samples of each client; by default equal",
    "federation.participation": "share of the clients that join a round",
    "federation.allow_single_class": "whether a client may have samples of one class only",
    "training.loss": "auto: ce for classification, mse for regression",
    "training.rounds": "one gradient of every client a round",
    "training.batch_size": "samples of a client in a round; 0: all",
    "training.optimiser": "of the server, for recovered gradients",
    "training.learning_rate": "at the start; see schedule",
    "training.momentum": "of sgd",
    "training.schedule": "how the learning rate goes down",
    "training.warmup_rounds": "rounds in which it goes up first",
    "training.augment": "whether pictures are shifted and mirrored",
    "training.evaluate_every": "rounds between two measurements on the test split",
    "training.checkpoint_every": "rounds between two checkpoints",
    "training.dtype": "of the model",
    "training.memory_format": "of pictures; auto: what is quicker for the network",
    "perturbation.noise": "on outputs: of the size of activations, or an offset of each sample",
    "perturbation.partitions": "of the outputs; each has noise of its own",
    "perturbation.permute": "whether neurons change places",
    "perturbation.scale_range": "of the factors of neurons",
    "perturbation.noise_ratio": "size of the noise over that of the outputs",
    "perturbation.softmax": "where cross entropy is computed; blinded: P0's exchange with the server",
    "perturbation.norm_inputs": "exact: no factor on what enters a norm; scaled: eps acts as eps / factor^2",
    "aggregation.masks": "of uploads; auto: what the protection needs",
    "aggregation.graph": "who shares masks with whom",
    "aggregation.neighbours": "of a client in that graph; by default as many as the settings need",
    "aggregation.threshold": "share of the clients that must be left at the end of a round",
    "aggregation.float_scale": "size of masks that are real numbers (masks = float)",
    "noise.mechanism": "sound is differential privacy that is proved; the others are published schemes",
    "noise.epsilon": "the budget: of the whole run (sound), of a round (the others)",
    "noise.noise_multiplier": "of sound noise, in place of epsilon",
    "noise.delta": "of the budget",
    "noise.unit": "whom the budget protects",
    "noise.clip": "largest norm of what one sample, or client, adds",
    "noise.adaptive_clip": "whether that norm follows the updates",
    "noise.colluders": "clients that may tell what they know without weakening the claim",
}
"""Of settings of a `RunPlan` whose field says nothing by itself."""


def commented_toml(plan: BaseModel, said: Mapping[str, str] = _SAID) -> str:
    """The plan with a comment at every setting: its field's description, or what `said` has under its dotted name.

    What is not set stands there as a comment.
    """
    fields = type(plan).model_fields
    # A plan may leave out what is as it was before there was the setting.
    written = plan.model_dump(mode="json")
    values = {**written, **{name: _whole(getattr(plan, name), written.get(name)) for name in fields}}
    values = {name: values[name] for name in (*fields, *(name for name in written if name not in fields))}
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    parts = [_settings(plain, fields, "", said)]
    for name, section in values.items():
        if name not in plain:
            kind = fields[name].annotation if name in fields else None
            parts.append(_section(name, section, getattr(kind, "model_fields", {}), said))
    return "\n\n".join(parts) + "\n"


def _whole(value: Any, written: Any) -> Any:
    if not isinstance(value, BaseModel):
        return value if written is None else written
    return {**{name: getattr(value, name) for name in type(value).model_fields}, **(written or {})}


def _section(name: str, values: dict[str, Any], fields: Mapping[str, FieldInfo], said: Mapping[str, str]) -> str:
    """Settings first: in TOML, what comes after a table inside of the section would belong to that table."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    plain = {key: value for key, value in values.items() if key not in tables}
    parts = [f"[{name}]"]
    if plain:
        parts.append(_settings(plain, fields, f"{name}.", said))
    for key, value in tables.items():
        comment = _comment(f"{name}.{key}", fields.get(key), said)
        if value:
            parts.append(f"\n# {comment}\n{tomli_w.dumps({name: {key: value}}).strip()}")
        else:
            parts.append(f"# [{name}.{key}]  # {comment}")
    return "\n".join(parts)


def _settings(values: dict[str, Any], fields: Mapping[str, FieldInfo], path: str, said: Mapping[str, str]) -> str:
    lines = []
    for name, value in values.items():
        written = f"# {name} =" if value is None else f"{name} = {_value(value)}"
        lines.append((written, _comment(path + name, fields.get(name), said)))
    width = max((len(written) for written, _ in lines if "\n" not in written), default=0)
    return "\n".join(f"{written:<{width}}  # {comment}" for written, comment in lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(tomli_w.dumps({key: ""}).removesuffix('""\n') + _value(one) for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return "[\n" + "".join(f"    {_value(one)},\n" for one in value) + "]"
    if isinstance(value, list):
        return f"[{', '.join(_value(one) for one in value)}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def _comment(dotted: str, field: FieldInfo | None, said: Mapping[str, str]) -> str:
    words = (field.description if field is not None else None) or said.get(dotted, "")
    choices = _choices(field.annotation) if field is not None else ""
    return "; ".join(part for part in (words, choices) if part) or dotted.rpartition(".")[2].replace("_", " ")


def _choices(annotation: Any) -> str:
    return " | ".join(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ""
