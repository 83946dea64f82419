"""The gradient graph of a model: from the outputs back, a rule at each node, contributions summed where they meet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UnsupportedError
from .model import FLOATS, Model, Node
from .rules import CONTROL_FLOW, FLAT, RULES
from .tensors import Builder, GradientNode, Op, Tensor


@dataclass(frozen=True)
class Backward:
    """The gradient graph: its nodes in order, its constants, where gradients come in and where they go out."""

    nodes: list[GradientNode]
    constants: dict[str, np.ndarray]
    seeds: dict[str, str]  # tensor of the model -> the gradient that comes in
    grads: dict[str, str]  # input or weight -> its gradient
    names: dict[str, int]  # how often each name was given, for whoever adds nodes


def build(model: Model, of: Sequence[str], wrt: Sequence[str]) -> Backward:
    """The gradients of `of` with respect to `wrt`; errors name what stands in the way."""
    _check_names(model, of, wrt)
    active = _active(model, of, wrt)
    graph = Builder(model)
    parts: dict[str, list[Tensor]] = {}
    seeds = {}
    for name in of:
        seeds[name] = seed(name)
        parts[name] = [Tensor(graph, seeds[name], model.type_of(name))]
    for node, wants in reversed(active):
        rule = RULES[node.domain, node.op]
        graph.prefix = node.name
        dys = [
            _total(graph, name, parts) if name in parts and rule.starts(i) else None
            for i, name in enumerate(node.outputs)
        ]
        if all(dy is None for dy in dys):
            continue
        for name, want, part in zip(node.inputs, wants, rule.gradient(Op(graph, node, dys, wants)), strict=False):
            if want and part is not None:
                parts.setdefault(name, []).append(part)
    grads = {}
    for name in wrt:
        graph.prefix = name
        grads[name] = _total(graph, name, parts).name
    return Backward(_live(graph, set(grads.values())), graph.constants, seeds, grads, graph.names)


def seed(name: str) -> str:
    """The name of the gradient that comes in for a tensor."""
    return f"{name}_grad_in"


def trainable(model: Model, of: Sequence[str], *, inputs: bool = False) -> list[str]:
    """The weights that a gradient can come to from `of`: all of float type but running statistics.

    With `inputs`, the inputs that it can come to are in front.
    """
    statistics = {name for node in model.nodes if node.op == "BatchNormalization" for name in node.inputs[3:]}
    on_way = _ancestors(model, of)
    found = [name for name in model.inputs if inputs and model.types.get(name, FLOATS[0]) in FLOATS]
    found += [name for name, w in model.weights.items() if w.dtype in FLOATS and name not in statistics]
    return [name for name in found if name in on_way]


def _check_names(model: Model, of: Sequence[str], wrt: Sequence[str]) -> None:
    for argument, names in (("of", of), ("wrt", wrt)):
        if isinstance(names, (str, bytes)) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{argument} is {names!r}; expected a sequence of names")
        if not names:
            raise ValueError(f"{argument} is empty; expected at least one name")
        if len(set(names)) != len(names):
            raise ValueError(f"{argument} names a tensor twice: {list(names)}")
    for name in of:
        if not model.knows(name):
            raise ValueError(f"of: the model has no tensor {name!r}; its outputs are {_list(model.outputs)}")
    for name in wrt:
        if name not in model.inputs and name not in model.weights:
            what = "is computed in the model" if model.knows(name) else "is not in the model"
            raise ValueError(
                f"wrt: {name!r} {what}; expected an input ({_list(model.inputs)}) or a weight ({_list(model.weights)})"
            )
    for argument, names in (("of", of), ("wrt", wrt)):
        for name in names:
            if model.types.get(name, FLOATS[0]) not in FLOATS:
                raise TypeError(f"{argument}: {name!r} has type {model.types[name]}; expected floating-point numbers")


def _differentiable(node: Node) -> list[str]:
    """The inputs that a gradient may flow to; of ops without a rule, all."""
    kind = (node.domain, node.op)
    if kind in FLAT:
        return []
    rule = RULES.get(kind)
    if rule is None:
        return [name for name in (*node.inputs, *node.captured) if name]
    return [name for i, name in enumerate(node.inputs) if name and rule.reaches(i)]


def _ancestors(model: Model, of: Sequence[str]) -> set[str]:
    """All tensors from which `of` depends by ways that carry gradients."""
    found = set(of)
    for node in reversed(model.nodes):
        rule = RULES.get((node.domain, node.op))
        if any(name in found and (rule is None or rule.starts(i)) for i, name in enumerate(node.outputs)):
            found.update(name for name in _differentiable(node) if model.types.get(name, FLOATS[0]) in FLOATS)
    return found


def _active(model: Model, of: Sequence[str], wrt: Sequence[str]) -> list[tuple[Node, list[bool]]]:
    """The nodes on the ways from `wrt` to `of`, and of which of their inputs the gradient is wanted."""
    on_way = _ancestors(model, of)
    for name in wrt:
        if name not in on_way:
            raise ValueError(f"wrt: {name!r} has no gradient: no path leads from it to {_list(of)}")
    moving, found = set(wrt), []
    for node in model.nodes:
        reached = any(name in on_way for name in node.outputs)
        if not reached or not any(name in moving for name in _differentiable(node)):
            continue
        rule = RULES.get((node.domain, node.op))
        if rule is None:
            raise _without_rule(model, node, of)
        found.append((node, [name in moving and rule.reaches(i) for i, name in enumerate(node.inputs)]))
        moving.update(name for name in node.outputs if name in on_way)
    return found


def check(model: Model, of: Sequence[str], wrt: Sequence[str]) -> None:
    """Raise what `build` would, but for sizes that are not known yet."""
    _check_names(model, of, wrt)
    _active(model, of, wrt)


def _total(graph: Builder, name: str, parts: dict[str, list[Tensor]]) -> Tensor:
    """The gradient of a tensor: the sum of what its uses contribute."""
    if len(parts[name]) > 1:
        prefix, graph.prefix = graph.prefix, f"Accumulate{name}"
        parts[name] = [graph.node("Sum", *parts[name])]
        graph.prefix = prefix
    return parts[name][0]


def _live(graph: Builder, results: set[str]) -> list[GradientNode]:
    """The nodes that the results need."""
    wanted, kept = set(results), []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


def _without_rule(model: Model, node: Node, of: Sequence[str]) -> UnsupportedError:
    path = " -> ".join(_path(model, node, of))
    what = "is control flow, which has no gradient" if (node.domain, node.op) in CONTROL_FLOW else "has no gradient"
    return UnsupportedError(
        f"{node} {what} here; it lies on the way {path}. Freeze all that is below it: leave out of wrt the inputs and "
        f"weights that it depends on"
    )


def _path(model: Model, node: Node, of: Sequence[str]) -> list[str]:
    """The shortest way from a node to an output, by names."""
    users: dict[str, list[Node]] = {}
    for each in model.nodes:
        for name in _differentiable(each):
            users.setdefault(name, []).append(each)
    queue, seen = deque([(node, [node.name])]), {node.name}
    while queue:
        current, path = queue.popleft()
        for name in current.outputs:
            if name in of:
                return [*path, name]
        for name in current.outputs:
            for user in users.get(name, []):
                if user.name not in seen:
                    seen.add(user.name)
                    queue.append((user, [*path, user.name]))
    return [node.name]


def _list(names: object) -> str:
    listed = [repr(name) for name in names]  # type: ignore[attr-defined]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
