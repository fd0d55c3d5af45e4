"""Datasets by name: the registered ones, and a user's own as `package.module:function`.

Nothing is ever downloaded. A set that is not on disk is an error that says where to get it and where it was
looked for. Whatever a loader returns is validated here, once.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from bilateral.data.dataset import Dataset, validate
from bilateral.data.digit_pairs import load_digit_pairs
from bilateral.data.embedded import load_breast_cancer, load_diabetes, load_digits, load_wine
from bilateral.data.hugging_face import load_hugging_face
from bilateral.data.image_folder import load_image_folder
from bilateral.data.images import IMAGE_SETS, load_images
from bilateral.data.own_files import load_npz
from bilateral.data.tables import load_csv, load_parquet
from bilateral.data.tabular import load_bank_marketing, load_heart_disease
from bilateral.errors import BilateralError, DataError

DATA_DIR_VARIABLE: Final = "BILATERAL_DATA"
_DATA_DIR_OPTION: Final = "data_dir"
_NOT_GIVEN: Final = Path()
GIVEN: Final = "given"
"""What a plan calls data and models that came as objects of Python (`bilateral.run(model=..., data=...)`)."""

_LOADERS: Final[dict[str, Callable[..., Any]]] = {
    "digits": load_digits,
    "digit-pairs": load_digit_pairs,
    "breast-cancer": load_breast_cancer,
    "diabetes": load_diabetes,
    "wine": load_wine,
    "bank-marketing": load_bank_marketing,
    "heart-disease": load_heart_disease,
    "npz": load_npz,
    "csv": load_csv,
    "parquet": load_parquet,
    "image-folder": load_image_folder,
    "hugging-face": load_hugging_face,
    **{image_set.name: partial(load_images, image_set) for image_set in IMAGE_SETS},
}


def dataset_names() -> tuple[str, ...]:
    """The registered names, sets that need no files first."""
    return tuple(_LOADERS)


def load_dataset(name: str, data_dir: Path | None = _NOT_GIVEN, /, **options: Any) -> Dataset:
    """Load a registered set, or call the user's `package.module:function`, and validate the result.

    `data_dir`, by place or by name, falls back to the environment variable BILATERAL_DATA. A user's function gets the
    options and, if it has a parameter of that name, `data_dir`; it must return a `Dataset`.
    """
    if _DATA_DIR_OPTION in options:
        if data_dir is not _NOT_GIVEN:  # a plan's options do not say where a site's data are
            raise DataError(
                f'Dataset "{name}": `data_dir` is given twice, as an argument and among the options.',
                remedy="Leave it out of the options.",
            )
        data_dir = options.pop(_DATA_DIR_OPTION)
    elif data_dir is _NOT_GIVEN:
        data_dir = None
    _check_arguments(name, data_dir)
    loader = _user_loader(name) if ":" in name else _registered_loader(name)
    parameters = inspect.signature(loader).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if takes_any or _DATA_DIR_OPTION in parameters:
        options[_DATA_DIR_OPTION] = _resolve_data_dir(data_dir)
    _check_options(name, parameters, options, takes_any)
    dataset = _call_user_loader(name, loader, options) if ":" in name else loader(**options)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f'Expected "{name}" to return a bilateral.data.Dataset, got {type(dataset).__name__}.',
            remedy="Build a Dataset with a train and a test Split in that function.",
        )
    return validate(dataset)


def _check_arguments(name: object, data_dir: object) -> None:
    if not isinstance(name, str):
        raise DataError(
            f"Expected the name of a dataset, got {name!r}.",
            remedy=f"Known ones are {', '.join(_LOADERS)}; your own load as `package.module:function`.",
        )
    if data_dir is not None and not isinstance(data_dir, str | Path):
        raise DataError(f"Expected the path of a folder with data, got {data_dir!r}.", remedy="Give its name as text.")


def _call_user_loader(name: str, loader: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        return loader(**options)
    except BilateralError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise DataError(
            f'"{name}" failed: {type(error).__name__}: {error}.', remedy="Call it in Python to see where."
        ) from error


def _registered_loader(name: str) -> Callable[..., Any]:
    if name == GIVEN:
        raise DataError(
            "The data of this run were objects of Python, which are not stored.",
            remedy="Call bilateral.run again with the same `data` and `model`; or name a function that loads them, "
            "`package.module:function`, which every command can call.",
        )
    if name in _LOADERS:
        return _LOADERS[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), _LOADERS, n=1)
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    raise DataError(
        f'Expected a dataset among {", ".join(_LOADERS)}, got "{name}".',
        remedy=f"{hint}Your own data load as `package.module:function`.",
    )


def _user_loader(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise DataError(
            f'Expected a dataset name or `package.module:function`, got "{name}".',
            remedy="Write the module with dots, then a colon, then the function.",
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything when it is imported
        raise DataError(
            f'Expected to import the module of "{name}", but: {type(error).__name__}: {error}.',
            remedy="Check the spelling, and that the module is installed or on PYTHONPATH.",
        ) from error
    loader = getattr(module, function_name, None)
    if not callable(loader):
        found = "nothing" if loader is None else type(loader).__name__
        raise DataError(
            f'Expected a function at "{name}", found {found}.',
            remedy="Name a function that returns a bilateral.data.Dataset.",
        )
    return cast(Callable[..., Any], loader)


def _check_options(
    name: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any], takes_any: bool
) -> None:
    """Refuse options that the loader does not know, and the lack of those it cannot do without."""
    named = {key: p for key, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    accepted = ", ".join(sorted(set(named) - {_DATA_DIR_OPTION})) or "(none)"
    unknown = sorted(set(options) - set(named))
    if unknown and not takes_any:
        raise DataError(
            f'Expected options of dataset "{name}" among: {accepted}; got {", ".join(unknown)}.',
            remedy="Remove or rename the unknown option.",
        )
    absent = sorted(key for key, p in named.items() if p.default is p.empty and key not in options)
    if absent:
        raise DataError(
            f'Dataset "{name}" needs the options {", ".join(absent)}, which were not given.',
            remedy="Give them with the name of the dataset.",
        )


def _resolve_data_dir(data_dir: Path | None) -> Path | None:
    if data_dir is not None:
        return Path(data_dir)
    from_environment = os.environ.get(DATA_DIR_VARIABLE)
    return Path(from_environment) if from_environment else None
