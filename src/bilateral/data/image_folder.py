"""Pictures of a user's own, in a folder a class; each is opened when it is needed.

[data]
name = "image-folder"
options = { classes = ["benign", "malignant"], size = [64, 64] }
[data.sites.clinic-a]
path = "clinic-a"         # clinic-a/train/benign/*.png, ..., or clinic-a/benign/*.png
[data.server]
path = "server"
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from bilateral.data.dataset import Dataset, LazySplit
from bilateral.data.mapped import MappedSamples
from bilateral.data.sampling import hold_out
from bilateral.errors import DataError, MissingDataError

ENDINGS: Final = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
_LAYOUT: Final = "Lay pictures out as FOLDER/CLASS/picture.png, or FOLDER/train/CLASS/... and FOLDER/test/CLASS/...."


class ImageFolder(TorchDataset[tuple[Tensor, int]]):
    """Pictures as float32 [channels, height, width] between 0 and 1, with the number of their class."""

    def __init__(self, files: list[Path], targets: list[int], size: tuple[int, int] | None, channels: int) -> None:
        self.files, self.targets, self.size, self.channels = files, targets, size, channels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.files[index]) as opened:
            picture = opened.convert("L" if self.channels == 1 else "RGB")
        if self.size is not None:
            picture = picture.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32) / 255
        values = torch.from_numpy(pixels)
        return (values[None] if self.channels == 1 else values.permute(2, 0, 1).contiguous()), self.targets[index]


def load_image_folder(
    data_dir: Path | None = None,
    *,
    path: str,
    classes: list[str] | None = None,
    size: list[int] | None = None,
    channels: int = 3,
    seed: int = 0,
    title: str = "image-folder",
) -> Dataset:
    """`classes`: the folders' names in the order of their numbers; by default those that are there, sorted.

    Sites that do not see all classes need them listed. `size`: [height, width] that pictures are resized to.
    `channels`: 3, or 1 for shades of grey. Without a `test` folder a fifth of each class is held out, drawn by `seed`.
    """
    if channels not in (1, 3):
        raise DataError(f"Expected 1 or 3 channels, got {channels!r}.", remedy="3 is colour, 1 shades of grey.")
    if size is not None and (len(size) != 2 or not all(type(side) is int and side > 0 for side in size)):
        raise DataError(f"Expected size = [height, width], got {size!r}.", remedy="Try [64, 64].")
    root = Path(path) if data_dir is None else data_dir / path
    if not root.is_dir():
        raise MissingDataError(f"Expected a folder of pictures at {root}, found none.", remedy=_LAYOUT)
    parts = {part: root / part for part in ("train", "test") if (root / part).is_dir()}
    first = parts.get("train", parts.get("test", root))
    names = list(classes) if classes else sorted(folder.name for folder in first.iterdir() if folder.is_dir())
    shape = (size[0], size[1]) if size is not None else None

    def of(folder: Path) -> ImageFolder:
        return _listed(folder, names, shape, channels)

    if parts:
        folders = [parts.get(part, first) for part in ("train", "test")]
        splits = [LazySplit(MappedSamples(of(folder), "classification", str(folder))) for folder in folders]
    else:
        found = of(root)
        whole = MappedSamples(found, "classification", str(root))
        splits = [LazySplit(whole.part(torch.from_numpy(part))) for part in hold_out(np.array(found.targets), seed)]
    return Dataset(str(title), "classification", splits[0], splits[1], len(names), tuple(names))


def _listed(folder: Path, names: list[str], size: tuple[int, int] | None, channels: int) -> ImageFolder:
    files: list[Path] = []
    targets: list[int] = []
    strange = sorted(found.name for found in folder.iterdir() if found.is_dir() and found.name not in names)
    if strange or not names:
        raise DataError(
            f"{folder} has folders that are no class: {', '.join(strange[:10]) or 'none at all'}; the classes are "
            f"{', '.join(names) or 'none'}.",
            remedy=_LAYOUT + " List the classes of all sites as `classes`.",
        )
    for number, name in enumerate(names):
        own = sorted(file for file in (folder / name).glob("*") if file.suffix.lower() in ENDINGS)
        files += own
        targets += [number] * len(own)
    if not files:
        raise DataError(f"{folder} has no pictures ({', '.join(ENDINGS)}).", remedy=_LAYOUT)
    return ImageFolder(files, targets, size, channels)
