"""Which weights are trained: `trainable="all"`, a list of names, or the last so many layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def chosen(trainable: Any, weights: Mapping[str, np.ndarray], nodes: Iterable[Any]) -> list[str]:
    """The names of the weights to train, in the order in which the model uses them.

    `weights` are those that a gradient can come to. "all" leaves out single numbers without axes, which are a model's
    constants (an epsilon, a scale) and not its weights; a list of names may name them. A layer is a node that uses
    weights nobody before it has used.
    """
    layers = _layers(weights, nodes)
    everything = [name for layer in layers for name in layer if weights[name].ndim]
    if isinstance(trainable, str):
        last = re.fullmatch(r"last:([1-9][0-9]*)", trainable)
        if trainable == "all":
            names = everything
        elif last:
            kept = [found for layer in layers if (found := [name for name in layer if weights[name].ndim])]
            names = [name for layer in kept[-int(last[1]) :] for name in layer]
        else:
            raise ValueError(f'trainable is {trainable!r}; expected "all", "last:2" or a list of names')
    elif isinstance(trainable, Sequence) and all(isinstance(name, str) for name in trainable):
        unknown = [name for name in trainable if name not in weights]
        if unknown:
            known = ", ".join(repr(name) for name in everything[:12]) + (", ..." if len(everything) > 12 else "")
            raise ValueError(f"trainable names {unknown[0]!r}, which no gradient comes to; expected some of {known}")
        wanted = set(trainable)
        names = [name for layer in layers for name in layer if name in wanted]
    else:
        raise TypeError(f'trainable is a {type(trainable).__name__}; expected "all", "last:2" or a list of names')
    if not names:
        raise ValueError(f"trainable is {trainable!r}: no weight is left to train; expected at least one")
    return names


def _layers(weights: Mapping[str, np.ndarray], nodes: Iterable[Any]) -> list[list[str]]:
    seen: set[str] = set()
    layers = []
    for node in nodes:
        own = [name for name in dict.fromkeys(node.inputs) if name in weights and name not in seen]
        seen.update(own)
        if own:
            layers.append(own)
    return layers
