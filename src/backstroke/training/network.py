"""The model as a training sees it: samples in, output and gradients out, weights and statistics that change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import errors
from .data import ports
from .model_file import ModelFile
from .select import chosen


class Network:
    """Forward, backward, and what changes in between. `inputs` and `port` (the output) say what the model expects."""

    def __init__(self, file: ModelFile, output: str | None, trainable: Any, seed: int) -> None:
        graph, onnx = _graph(), _onnx()
        model = graph.load(file.path if file.path is not None else file.data)
        self.inputs = ports([v for v in model.skeleton.graph.input if v.name not in file.weights])
        outputs = {port.name: port for port in ports(model.skeleton.graph.output)}
        if output is None and len(outputs) != 1:
            raise ValueError(f"the model has {len(outputs)} outputs; expected output= to name one of {list(outputs)}")
        self.output = next(iter(outputs)) if output is None else output
        if self.output not in outputs:
            raise ValueError(f"output is {output!r}; expected one of the model's outputs, {list(outputs)}")
        self.port = outputs[self.output]
        if self.port.dtype is not None and self.port.dtype not in (np.float32, np.float64):
            raise TypeError(
                f"the model's output {self.output!r} has type {self.port.dtype}; expected float32 or float64"
            )
        reached = [name for name in graph.trainable(model, [self.output]) if name in file.weights]
        names = chosen(trainable, {name: model.weights[name] for name in reached}, model.nodes)
        self._net = graph.Differentiable(model, of=[self.output], wrt=names, training=True)
        self.parameters: dict[str, np.ndarray] = {name: self._net.parameters[name] for name in names}
        self.gradients: dict[str, np.ndarray] = {}
        self._model, self._seed, self._onnx = model, seed, onnx
        self._seeds: dict[tuple[int, ...], np.ndarray] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._before: dict[str, np.ndarray] = {}
        self._several = self._added = False

    @property
    def batch(self) -> int | None:
        """The batch size, where the model has a fixed one."""
        return next((port.batch for port in self.inputs if port.batch is not None), None)

    # ---- a step ----

    def begin_step(self, step: int, *, several: bool) -> None:
        """A step begins; with `several`, its gradients are summed over more than one backward pass.

        What Dropout drops depends on the seed and the step, and on nothing that came before.
        """
        self._net.random = np.random.default_rng([self._seed, step])
        for name, array in self._net.statistics.items():
            np.copyto(self._before.setdefault(name, np.empty_like(array)), array)
        self._several, self._added = several, False

    def undo_step(self) -> None:
        """Put back what forward passes have changed since `begin_step`."""
        for name, array in self._net.statistics.items():
            np.copyto(array, self._before[name])

    def forward(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The output; the next call writes over it."""
        output: np.ndarray = self._net.forward(feeds)[self.output]
        return output

    def seed(self, output: np.ndarray) -> np.ndarray:
        """Where the gradient of the output goes, for `backward`."""
        found = self._seeds.get(output.shape)
        if found is None:
            found = self._seeds[output.shape] = np.empty_like(output, order="C")
        self._output_shape = output.shape
        return found

    def backward(self) -> None:
        """`gradients` gets those of the last forward pass, or, with `several`, the sum since `begin_step`."""
        gradients = self._net.backward({self.output: self._seeds[self._output_shape]})
        if not self._several:
            self.gradients = gradients
            return
        for name, gradient in gradients.items():
            if name not in self._sums:
                self._sums[name] = np.empty_like(gradient, order="C")
            if self._added:
                np.add(self._sums[name], gradient, out=self._sums[name])
            else:
                np.copyto(self._sums[name], gradient)
        self._added, self.gradients = True, self._sums

    # ---- weights ----

    def weights(self) -> dict[str, np.ndarray]:
        """All weights that training changes: parameters and running statistics."""
        return {**self._net.statistics, **self.parameters}

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Put those in their places."""
        for name, array in self.weights().items():
            np.copyto(array, weights[name])

    # ---- what went wrong ----

    def first_bad(self, feeds: Mapping[str, np.ndarray]) -> str | None:
        """The first tensor that is not finite, in the order in which the model computes them from `feeds`."""
        for name, array in feeds.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"the data: input {name!r}"
        live = self.weights()
        for name, array in live.items():
            if not np.isfinite(array).all():
                return f"the weight {name!r}"
        from ..graph.prepare import prepare
        from ..graph.session import Session

        prepared = prepare(self._model, training=True)
        model = prepared.model
        makers = {name: node for node in model.nodes for name in node.outputs if name}
        fed = {**model.large, **live}
        proto = model.build(weights_in=fed, outputs=[])
        proto.graph.output.extend(self._onnx.ValueInfoProto(name=name) for name in makers)
        masks = {mask: np.ones((), model.types.get(x, np.float32)) for mask, x in prepared.masked.items()}
        found = Session(proto, optimized=False).run({**feeds, **fed, **masks}, list(makers))
        for (name, node), array in zip(makers.items(), found, strict=True):
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{name!r}, made by {node}"
        return None


def _graph() -> Any:
    try:
        from .. import graph
    except ImportError as error:
        raise _without(error) from error
    return graph


def _onnx() -> Any:
    try:
        import onnx
        import onnxruntime  # noqa: F401 - needed later; better said now
    except ImportError as error:
        raise _without(error) from error
    return onnx


def _without(error: ImportError) -> Exception:
    return errors.UnsupportedError(f"training needs {error.name}: pip install 'backstroke[train]'")
