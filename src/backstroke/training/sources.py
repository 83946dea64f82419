"""Data for the command: an .npz file, or a folder of images with a folder for each class."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .data import Port

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


@dataclass
class Data:
    """Samples and targets, and those of the validation where the source has some; `classes` of a folder of images."""

    x: Any
    y: np.ndarray
    validation: tuple[Any, np.ndarray] | None = None
    classes: Sequence[str] = ()

    def split(self, share: float, seed: int) -> Data:
        """With that share of the samples, chosen by the seed, taken out for validation."""
        if not 0 < share < 1:
            raise ValueError(f"validation is {share}; expected a share between 0 and 1")
        order = np.random.default_rng(seed).permutation(len(self.y))
        held, kept = np.split(order, [max(1, round(share * len(order)))])
        if not len(kept):
            raise ValueError(f"validation is {share}: of {len(order)} samples none would be left to train on")

        def rows(x: Any, which: np.ndarray) -> Any:
            return {name: each[which] for name, each in x.items()} if isinstance(x, dict) else x[which]

        return Data(rows(self.x, kept), self.y[kept], (rows(self.x, held), self.y[held]), self.classes)


def load(
    path: Path, inputs: Sequence[Port], *, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,),
    note: Callable[[str], object] = lambda text: None,
) -> Data:  # fmt: skip
    """The data of a path, for a model with those inputs."""
    if path.is_dir():
        return images(path, inputs, mean=mean, std=std, note=note)
    if not path.exists():
        raise ValueError(f"data: there is no {str(path)!r}; expected an .npz file or a folder of images")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"data: {str(path)!r} is neither an .npz file nor a folder; expected one of these")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"data: {str(path)!r} cannot be read as .npz: {error}") from error
    x, y = _pair(arrays, inputs, "x", "y", path)
    validation = _pair(arrays, inputs, "xv", "yv", path) if "yv" in arrays else None
    return Data(x, y, validation)


def _pair(arrays: dict[str, np.ndarray], inputs: Sequence[Port], x: str, y: str, path: Path) -> tuple[Any, np.ndarray]:
    """Samples under `x`, or under the names of the model's inputs (for the validation, with `_v`); and targets."""
    suffix = "" if x == "x" else "_v"
    named = {port.name: arrays[port.name + suffix] for port in inputs if port.name + suffix in arrays}
    if y not in arrays or (x not in arrays and len(named) < len(inputs)):
        wanted = " and ".join(repr(port.name + suffix) for port in inputs)
        raise ValueError(f"data: {str(path)!r} has {sorted(arrays)}; expected {y!r}, and {x!r} or {wanted}")
    return (arrays[x] if x in arrays and len(named) < len(inputs) else named), arrays[y]


def images(
    folder: Path, inputs: Sequence[Port], *, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,),
    note: Callable[[str], object] = lambda text: None,
) -> Data:  # fmt: skip
    """The images of a folder; each folder in it is a class, in the order of their names.

    They are resized to the model's input, scaled to [0, 1], and normalized by `mean` and `std`, of which there is one
    number or one for each channel.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ValueError("data: a folder of images needs Pillow: pip install 'backstroke[train]'") from error
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) != 4:
        found = ", ".join(f"{port.name!r} {port.shape}" for port in inputs)
        raise ValueError(f"data: a folder of images is for a model with one input (samples, channels, height, width); "
                         f"this one has {found}")  # fmt: skip
    _, channels, height, width = inputs[0].shape
    if channels not in (1, 3) or height is None or width is None:
        raise ValueError(
            f"data: the model's input has shape {inputs[0].shape}; expected 1 or 3 channels and fixed sizes"
        )
    classes = sorted(each.name for each in folder.iterdir() if each.is_dir())
    files = [(i, each) for i, name in enumerate(classes) for each in sorted((folder / name).iterdir())]
    files = [(i, each) for i, each in files if each.suffix.lower() in SUFFIXES]
    if not files:
        raise ValueError(f"data: no images in the folders of {str(folder)!r}; expected folder/class/image.png")
    x = np.empty((len(files), channels, height, width), inputs[0].dtype or np.float32)
    scale, shift = (np.asarray(each, np.float32).reshape(-1, 1, 1) for each in (std, mean))
    for array, name in ((shift, "mean"), (scale, "std")):
        if len(array) not in (1, channels):
            raise ValueError(f"{name} has {len(array)} numbers; expected 1 or {channels}, one for each channel")
    for row, (_, path) in enumerate(files):
        try:
            with Image.open(path) as image:
                fitted = image.convert("L" if channels == 1 else "RGB").resize(
                    (width, height), Image.Resampling.BILINEAR
                )
        except (OSError, UnidentifiedImageError) as error:
            raise ValueError(f"data: {str(path)!r} is not an image: {error}") from error
        pixels = np.asarray(fitted, np.float32).reshape(height, width, channels).transpose(2, 0, 1) / 255
        x[row] = (pixels - shift) / scale
    note(f"{len(files)} images of {len(classes)} classes: {', '.join(classes)}")
    return Data(x, np.array([i for i, _ in files], np.int64), None, classes)
