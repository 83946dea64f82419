"""The plan of forward and backward of one model: ONNX Runtime runs the one, our kernels the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from .. import memory
from . import backward, blocked
from .model import FLOATS, Model, load
from .plan import Plan, Planner
from .prepare import prepare
from .session import Binding, Session
from .small_planes import rewritten
from .tensors import SizesNeededError

_MOST_PLANS = 4


@dataclass(frozen=True)
class _Planned:
    plan: Plan
    binding: Binding


class Differentiable:
    """Forward and backward of one ONNX model.

    `of` names outputs (or inner tensors) whose gradients come in, `wrt` the inputs or weights whose gradients go out.
    Everything that can be wrong with the model is said here: unknown names, an op without a gradient (the error names
    the node, the op, its way to `of`, and what can be done), control flow on the way, a damaged file.

    `parameters` are the float weights in `wrt`: live arrays that the next forward pass uses as they are then; write
    into them, do not replace them. `statistics` are, with `training`, the running means and variances of batch
    normalizations, which each forward pass moves on; `random` is what dropout draws from.

    With `training`, batch normalization normalizes by the batch and Dropout drops; without, both do as at inference.
    """

    parameters: dict[str, np.ndarray]
    statistics: dict[str, np.ndarray]
    random: np.random.Generator

    def __init__(
        self, model: Any, *, of: Sequence[str], wrt: Sequence[str], training: bool = False, seed: int = 0
    ) -> None:
        given = model if isinstance(model, Model) else load(model)
        self._of, self._wrt, self.training = names_of("of", of), names_of("wrt", wrt), training
        self._prepared = prepare(given, training=training)
        self._model = self._prepared.model
        self.random = np.random.default_rng(seed)
        backward.check(self._model, self._of, self._wrt)
        self._backward: backward.Backward | None = None  # None: it depends on sizes, and is built for each plan
        with suppress(SizesNeededError):
            self._backward = backward.build(self._model, self._of, self._wrt)
        weights = self._model.weights
        self.parameters = {name: np.array(weights[name], order="C") for name in self._wrt if name in weights}
        self.statistics = {}
        for s in self._prepared.statistics:
            for name in (s.mean, s.variance):
                if name in weights:
                    self.statistics[name] = np.array(weights[name], order="C")
        self._live = {**self.parameters, **self.statistics}
        self._mentioned = self._mentions()
        self._known = _known(self._model, set(self._live))
        self._plans: OrderedDict[tuple[Any, ...], _Planned] = OrderedDict()
        self._block = np.empty(0, np.uint8)
        self._looking: Session | None = None
        self._session: Session | None = None
        self._blocked = blocked.Blocked()
        self._session_outputs: set[str] = set()
        self._last: tuple[_Planned, dict[str, np.ndarray]] | None = None

    @property
    def inputs(self) -> list[str]:
        """The names that `forward` must be fed."""
        return [name for name in self._model.inputs if name not in self._prepared.masks]

    @property
    def outputs(self) -> list[str]:
        """The names that `forward` gives: the model's outputs, and `of`."""
        return list(dict.fromkeys((*self._model.outputs, *self._of)))

    def forward(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model; -> its outputs and the tensors in `of`, by name.

        What the backward pass needs is kept. The feeds are read again by `backward`: leave them as they are until
        then. The arrays that come out are written anew by the next call.
        """
        arrays = self._checked_feeds(feeds)
        planned = self._plan(arrays)
        plan = planned.plan
        for mask, ratio in self._prepared.masks.items():
            arrays[mask] = self._mask(plan.masks[mask], ratio)
        self._blocked.fill(blocked.block_size())
        planned.binding.run({**arrays, **self._live, **self._blocked.arrays})
        self._move_statistics(plan.stash)
        self._last = planned, arrays
        return {name: plan.stash[name] for name in self.outputs}

    def backward(self, dy: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """The gradients of the last forward pass, by name in `wrt`.

        `dy` has the gradients of the tensors in `of`; it may be left out where `of` is one number, whose gradient is 1
        then. There is one backward for each forward: what was kept for it is overwritten. So are the arrays that come
        out, by the next call.
        """
        if self._last is None:
            raise ValueError(
                "backward: there was no forward pass before it; call forward first, once for each backward"
            )
        planned, arrays = self._last
        seeds = self._checked_seeds(dy, planned.plan.stash)
        self._last = None
        planned.plan.run({**arrays, **seeds})
        return dict(planned.plan.grads)

    # ---- what comes in --------------------------------------------------------------------------------------------

    def _checked_feeds(self, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
        if not isinstance(feeds, dict):
            raise TypeError(f"feeds is a {type(feeds).__name__}; expected a dict of arrays by input name")
        if set(feeds) != set(self.inputs):
            raise ValueError(f"feeds: {sorted(feeds)} given, expected the model's inputs, {sorted(self.inputs)}")
        arrays = {}
        for name, given in feeds.items():
            array = given if isinstance(given, np.ndarray) else np.asarray(given)
            expected = self._model.types.get(name)
            if expected is not None and array.dtype != expected:
                raise TypeError(f"feeds: {name!r} has type {array.dtype}; expected {expected}")
            self._check_shape(name, array.shape)
            arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        return arrays

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        dims = self._model.shapes.get(name)
        if dims is None:
            return
        wrong = len(dims) != len(shape) or any(isinstance(d, int) and d != n for d, n in zip(dims, shape, strict=False))
        if wrong:
            raise ValueError(f"feeds: {name!r} has shape {shape}; expected {dims}")

    def _checked_seeds(self, dy: Any, stash: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if dy is None:
            if len(self._of) > 1 or stash[self._of[0]].size != 1:
                raise ValueError(f"dy is missing: {self._of} is not one number; expected its gradient")
            dy = {self._of[0]: np.ones_like(stash[self._of[0]])}
        if not isinstance(dy, dict):
            raise TypeError(f"dy is a {type(dy).__name__}; expected a dict of arrays by name")
        if set(dy) != set(self._of):
            raise ValueError(f"dy: {sorted(dy)} given, expected gradients of {sorted(self._of)}")
        seeds = {}
        for name, given in dy.items():
            array, y = np.asarray(given), stash[name]
            if array.dtype != y.dtype:
                raise TypeError(f"dy: {name!r} has type {array.dtype}; expected {y.dtype}")
            if array.shape != y.shape:
                raise ValueError(f"dy: {name!r} has shape {array.shape}; expected {y.shape}")
            seeds[backward.seed(name)] = np.ascontiguousarray(array).reshape(array.shape)
        return seeds

    # ---- chance and statistics --------------------------------------------------------------------------------------

    def _mask(self, mask: np.ndarray, ratio: float) -> np.ndarray:
        drawn = self.random.random(mask.shape, np.float32)
        np.multiply(drawn >= ratio, 1 / (1 - ratio) if ratio < 1 else 0, out=mask, casting="unsafe")
        return mask

    def _move_statistics(self, stash: dict[str, np.ndarray]) -> None:
        for s in self._prepared.statistics:
            for name, batch in ((s.mean, s.batch_mean), (s.variance, s.batch_variance)):
                running = self.statistics.get(name)
                if running is not None:
                    running *= s.momentum
                    running += (1 - s.momentum) * stash[batch].reshape(running.shape)

    # ---- planning ---------------------------------------------------------------------------------------------------

    def _mentions(self) -> list[str]:
        """The forward tensors that the gradient graph speaks of; all, where it is not known yet."""
        if self._backward is None:
            return [
                n for n in (*self._model.inputs, *self._model.weights, *self._model.producer) if n in self._model.types
            ]
        names = [name for node in self._backward.nodes for name in (*node.inputs, node.like) if name]
        names += self._backward.grads.values()
        masked = list(self._prepared.masked.values())
        batch = [n for s in self._prepared.statistics for n in (s.batch_mean, s.batch_variance)]
        return [n for n in dict.fromkeys((*names, *masked, *batch, *self.outputs)) if self._model.knows(n)]

    def _plan(self, arrays: dict[str, np.ndarray]) -> _Planned:
        key = tuple((name, arrays[name].shape) for name in self.inputs)
        planned = self._plans.get(key)
        if planned is None:
            planned = self._make_plan(arrays)
            self._plans[key] = planned
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return planned

    def _make_plan(self, arrays: dict[str, np.ndarray]) -> _Planned:
        shapes, values = self._look(arrays)
        graph = self._backward
        if graph is None:
            graph = backward.build(self._model.at(shapes, values), self._of, self._wrt)
        dtypes = {name: self._model.types[name] for name in self._mentioned}
        for name, seed in graph.seeds.items():
            shapes[seed], dtypes[seed] = shapes[name], dtypes[name]
        batch = [n for s in self._prepared.statistics for n in (s.batch_mean, s.batch_variance)]
        masks = {}
        for mask, x in self._prepared.masked.items():
            masks[mask] = memory.pool.empty(shapes[x], dtypes[x])
            shapes[mask], dtypes[mask] = shapes[x], dtypes[x]
        planner = Planner(
            graph,
            shapes,
            dtypes,
            {**values, **{n: w for n, w in self._model.weights.items() if n not in self._live}},
            self._live,
            [*self.inputs, *masks, *graph.seeds.values()],
            list(dict.fromkeys((*self.outputs, *batch))),
        )
        plan = planner.plan(self._memory)
        plan.masks = masks
        if self._session is None or not self._session_outputs.issuperset(plan.stash):
            self._session_outputs |= set(plan.stash)
            apart: dict[str, np.ndarray] = {}
            proto = self._model.build(weights_in=self._live, outputs=sorted(self._session_outputs), apart=apart)
            for output in proto.graph.output:
                if not output.type.tensor_type.elem_type:
                    kind = helper.np_dtype_to_tensor_dtype(dtypes.get(output.name, np.dtype(np.float32)))
                    output.CopyFrom(helper.make_tensor_value_info(output.name, kind, None))
            proto, self._blocked = blocked.rewritten(
                rewritten(proto, self._model, self._live), self._model, self._live, shapes
            )
            self._session = Session(proto, apart)
        return _Planned(plan, self._session.bind(plan.stash))

    def _look(self, arrays: dict[str, np.ndarray]) -> tuple[dict[str, tuple[int, ...]], dict[str, np.ndarray]]:
        """The shapes of all tensors that are mentioned, and the values of those that follow from shapes alone."""
        asked = [n for n in self._mentioned if n not in self._model.weights and n not in arrays]
        looked = {name: f"{name}:shape" for name in asked}
        wanted = [n for n in asked if n in self._known]
        fed = {**self._model.large, **self._live}  # a session would make copies of its own
        if self._looking is None:
            nodes = [helper.make_node("Shape", [name], [shape]) for name, shape in looked.items()]
            proto = self._model.build(weights_in=fed, outputs=[*looked.values(), *wanted], nodes=nodes)
            for output in proto.graph.output:
                if not output.type.tensor_type.elem_type:
                    kind = self._model.types.get(output.name, np.dtype(np.int64))
                    output.CopyFrom(
                        helper.make_tensor_value_info(output.name, helper.np_dtype_to_tensor_dtype(kind), None)
                    )
            self._looking = Session(proto, optimized=False)
        masks = {m: np.ones((), self._model.types.get(x, FLOATS[0])) for m, x in self._prepared.masked.items()}
        found = self._looking.run({**arrays, **fed, **masks}, [*looked.values(), *wanted])
        shapes = {name: tuple(int(n) for n in shape) for name, shape in zip(looked, found, strict=False)}
        values = dict(zip(wanted, (np.asarray(v) for v in found[len(looked) :]), strict=True))
        shapes |= {name: w.shape for name, w in self._model.weights.items()}
        shapes |= {name: array.shape for name, array in arrays.items()}
        return shapes, values

    def _memory(self, size: int) -> np.ndarray:
        """A block for a plan; plans share it, as only one is at work at a time."""
        if self._block.size < size:
            self._block = memory.pool.empty((size,), np.dtype(np.uint8))
        return self._block


def names_of(argument: str, names: Any) -> list[str]:
    """A name or a sequence of names, as a list."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise TypeError(f"{argument} is a {type(names).__name__}; expected a name or a sequence of names")
    return list(names)


def _known(model: Model, live: set[str]) -> set[str]:
    """The tensors whose values follow from constants and shapes."""
    found = (set(model.weights) - live) | set(model.constants)
    for node in model.nodes:
        if node.captured or "Random" in node.op:
            continue
        if node.op in ("Shape", "Size") or all(name in found for name in node.inputs if name):
            found.update(node.outputs)
    return found - {""}


def grad(model: Any, *, of: Any, wrt: Any) -> Callable[..., dict[str, np.ndarray]]:
    """The derivatives of a frozen ONNX model: `g = bs.grad(model, of="logits", wrt=["input", "conv1.weight"])`.

    `of` are names of outputs (or inner tensors), `wrt` of inputs or weights. `g(feeds, dy={"logits": dy})` gives the
    gradients by name, as new arrays; `dy` may be left out where `of` is one number. Shapes may change from call to
    call. NaN and infinities pass as the ops' gradients pass them.
    """
    plan = Differentiable(model, of=names_of("of", of), wrt=names_of("wrt", wrt))

    def g(feeds: dict[str, Any], dy: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
        """The gradients at `feeds`, by name."""
        plan.forward(feeds)
        return {name: gradient.copy() for name, gradient in plan.backward(dy).items()}

    return g


__all__ = ["Differentiable", "grad"]
