"""Write the reference pages of the documentation from the code: commands, settings of plans, API, errors.

python tools/write_reference.py docs/reference
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import tempfile
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import bilateral
from bilateral import errors
from bilateral.cli.lazy_commands import imported
from bilateral.cli.main import app
from bilateral.cli.printed import PRINTED, schema_of
from bilateral.engine.plan import RunPlan
from bilateral.protections.registry import own_sections
from bilateral.runs.hetero.plan import HeteroPlan
from error_examples import EXAMPLES, message_of


def write_reference(folder: Path) -> None:
    """All pages; those that are the same are not touched, so that a build has nothing to do again."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "commands": commands(),
        "settings": settings(),
        "api": api(),
        "errors": error_catalogue(),
        "json": json_page(),
    }
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def json_page() -> str:
    """The schema of what each command prints."""
    lines = [
        "# JSON",
        "",
        "What commands print with `--json`, as [JSON Schema](https://json-schema.org); `bilateral schema COMMAND` "
        "prints it too. Nothing is printed that is not named here, but rows of `bench`, events of `watch`, and kinds "
        "of run from other packages.",
        "",
    ]
    for command in sorted(PRINTED):
        shown = json.dumps(schema_of(command), indent=1)
        lines += [f"## bilateral {command}", "", "```json", shown, "```", ""]
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments, options and examples, as `--help` has them."""
    lines = [
        "# Commands",
        "",
        "Every command has `--help` with examples and `--json` (but `schema`, which prints nothing else).",
        "",
    ]
    for name, command in _leaves(imported(app), "bilateral"):
        lines += [f"## {name}", ""]
        text = inspect.cleandoc(command.help or "")
        summary, _, examples = text.partition("Examples:")
        lines += [summary.strip(), ""]
        shown = [line.strip() for line in examples.splitlines() if line.strip()]
        if shown:
            lines += ["```text", *shown, "```", ""]
        rows = [_parameter(one) for one in command.params if not getattr(one, "hidden", False)]
        if rows:
            lines += ["| argument or option | default | what it is |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _leaves(commands: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Commands that are no groups. Whose click they are of, typer's own or the library's, does not matter."""
    for name in sorted(commands):
        inner: dict[str, Any] = getattr(commands[name], "commands", {})
        if inner:
            yield from _leaves(inner, f"{above} {name}")
        else:
            yield f"{above} {name}", commands[name]


def _parameter(one: Any) -> str:
    is_argument = one.param_type_name == "argument"
    names = (one.name or "").upper() if is_argument else ", ".join((*one.opts, *one.secondary_opts))
    default = one.default if isinstance(one.default, str | int | float) and not isinstance(one.default, bool) else ""
    return f"| `{names}` | {_cell(default)} | {_cell(getattr(one, 'help', '') or '')} |"


def settings() -> str:
    """Every setting of a plan with its default."""
    lines = ["# Settings of plans", "", "In a plan file, or by `--set section.name=value`.", ""]
    for title, plan in (("bilateral run", RunPlan), ("bilateral hetero", HeteroPlan)):
        lines += [f"## {title}", ""]
        plain = [(name, field) for name, field in plan.model_fields.items() if not _is_section(field.annotation)]
        lines += _settings_table("", plain)
        for name, field in plan.model_fields.items():
            if _is_section(field.annotation):
                lines += _section(name, field.annotation)
        if plan is RunPlan:
            for name, section in own_sections().items():
                lines += _section(name, section) if name not in plan.model_fields else []
    return "\n".join(lines)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _section(name: str, section: Any) -> list[str]:
    text = inspect.cleandoc(section.__doc__ or "")
    return [f"### {name}", "", text, "", *_settings_table(f"{name}.", section.model_fields.items())]


def _settings_table(prefix: str, fields: Any) -> list[str]:
    rows = []
    for name, field in fields:
        default = field.get_default(call_default_factory=True)
        said = field.description or ""
        rows.append(
            f"| `{prefix}{name}` | {_cell(_type(field.annotation))} | `{_cell(repr(default))}` | {_cell(said)} |"
        )
    return ["| setting | values | default | |", "|---|---|---|---|", *rows, ""] if rows else []


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if one is types.NoneType else _type(one) for one in arguments)
    if origin is not None:
        return f"{origin.__name__} of {', '.join(_type(one) for one in arguments)}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true, false"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation))
    )


def api() -> str:
    """Everything that `import bilateral` has, from its docstrings."""
    lines = ["# Python API", "", "What `import bilateral` has. Everything else is internal and may change.", ""]
    for name in sorted(bilateral.__all__, key=str.lower):
        found = getattr(bilateral, name)
        lines += [f"## {name}", "", "```python", _signature(name, found), "```", "", *_doc(found)]
        if inspect.isclass(found):
            for method_name, method in _methods(found):
                signature = _signature(f"{name}.{method_name}", method)
                lines += [f"### {name}.{method_name}", "", "```python", signature, "```", "", *_doc(method)]
    return "\n".join(lines)


def _doc(found: Any) -> list[str]:
    """The docstring as Markdown: indented parts are code there too."""
    text = inspect.getdoc(found) or ""
    if inspect.isclass(found) and dataclasses.is_dataclass(found) and text.startswith(f"{found.__name__}("):
        text = ""  # made by dataclass
    return [text, ""] if text else []


def _methods(found: type) -> Iterator[tuple[str, Any]]:
    for name, member in sorted(vars(found).items()):
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
            yield name, inner


def _signature(name: str, found: Any) -> str:
    try:
        text = f"{name}{inspect.signature(found)}"
    except (TypeError, ValueError):
        return name
    if len(text) <= 100:
        return text
    head, _, rest = text.partition("(")
    inside, _, after = rest.rpartition(")")
    return f"{head}(\n{textwrap.indent(_one_a_line(inside), '    ')}\n){after}"


def _one_a_line(arguments: str) -> str:
    """Split at commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return ",\n".join(part.strip() for part in parts)


def error_catalogue() -> str:
    """Every error that the package raises on purpose, with a message that its example really raises."""
    lines = [
        "# Errors",
        "",
        "Every error says what was expected, what came, and what to do. All are `BilateralError`, and have the last "
        "part as `remedy`; the command prints the message, without a traceback, with exit code 2. Messages here are of "
        "errors that were really raised when this page was made, by `tools/error_examples.py`.",
        "",
        "```text",
        *inspect.cleandoc(errors.__doc__ or "").splitlines()[2:-2],
        "```",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind in EXAMPLES:
            error = message_of(kind, Path(folder) / kind.__name__)
            what, remedy = error.in_full().removesuffix(error.remedy).strip(), error.remedy
            parents = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
            lines += [f"## {kind.__name__}", "", f"A {parents}. {_cell(inspect.getdoc(kind) or '')}", ""]
            lines += ["```text", *textwrap.wrap(what, 110), *textwrap.wrap(f"-> {remedy}", 110), "```", ""]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
