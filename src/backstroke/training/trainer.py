"""`Trainer`: fine-tunes an ONNX model. The forward pass is ONNX Runtime's, the backward pass Backstroke's."""

from __future__ import annotations

import math
import os
import shutil
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import arrays
from . import checkpoint, files, optimizers, schedules
from .data import Batches, Port, check_batch_size, checked_inputs, whole
from .interrupt import Interrupts
from .losses import NOTHING, Loss, Sums, named
from .model_file import ModelFile
from .network import Network
from .optimizers import AdamW, Optimizer, Updates
from .predictor import Predictor, stretches
from .progress import Progress, shown
from .run import Run

Path = str | os.PathLike[str]
_TARGETS = ""  # stands for the targets among a batch's inputs, which have names


class Trainer:
    """Trains the weights of an ONNX model, and saves it as it was but for them.

    `model` is a path, bytes or an onnx.ModelProto. `loss` is "cross_entropy" (whole-number labels, from logits with the
    classes along axis 1), "mse", "l1" or "bce_with_logits", and is taken of `output`, or of the model's only output.
    `trainable` is "all", a list of names of weights, or "last:2" for the last two layers that have some. `schedule` is
    "constant", "linear", "cosine" or an object of `backstroke.training.schedules`. With `clip_norm`, gradients whose
    norm, taken over all of them, is larger are scaled down to it. `seed` decides in which order samples come and what
    Dropout drops; nothing else is left to chance, and the number of threads changes no bit of the gradients.

    Everything is checked here, before any training: an op without a gradient, say, is an error that names it.
    """

    def __init__(
        self,
        model: Any,
        *,
        loss: str | Loss,
        optimizer: Optimizer | None = None,
        trainable: str | Sequence[str] = "all",
        seed: int = 0,
        schedule: str | schedules.Schedule = "constant",
        clip_norm: float | None = None,
        output: str | None = None,
    ) -> None:
        self._loss, self._schedule = named(loss), schedules.named(schedule)
        self._optimizer = AdamW() if optimizer is None else optimizer
        if not isinstance(self._optimizer, Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; expected bs.SGD(...) or bs.AdamW(...)")
        self._seed = whole("seed", seed, 0)
        self._clip_norm = None if clip_norm is None else arrays.number("clip_norm", clip_norm)
        if self._clip_norm is not None and not self._clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm}; expected a number above 0")
        self._file = model if isinstance(model, ModelFile) else ModelFile(model)
        self._network = Network(self._file, output, trainable, self._seed)
        self._updates = Updates(self._optimizer, self._network.parameters)
        self._run: Run | None = None
        self._best: dict[str, np.ndarray] = {}
        self._fits = 0
        self._predictor: Predictor | None = None
        self.history: list[dict[str, float]] = []
        self.losses: list[float] = []

    # ---- what is trained ----

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The weights that are trained, by name. They are live: the next step uses what they hold."""
        self._predictor = None  # whoever has them may write into them
        return dict(self._network.parameters)

    @property
    def steps(self) -> int:
        """How many updates there have been."""
        return self._updates.steps

    @property
    def unfinished(self) -> Run | None:
        """The `fit` that was interrupted, whose arguments the next one must have; None where there is none."""
        return None if self._run is None or self._run.over else self._run

    @property
    def inputs(self) -> list[Port]:
        """What the model expects: names, types and shapes of its inputs."""
        return list(self._network.inputs)

    @property
    def metric(self) -> str:
        """The name of what is shown beside the loss: "accuracy", "mae" or "rmse"."""
        return self._loss.metric

    # ---- training ----

    def fit(
        self,
        x: Any,
        y: Any,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        accumulate: int = 1,
        shuffle: bool = True,
        validation: tuple[Any, Any] | None = None,
        patience: int | None = None,
        progress: bool | Progress | None = None,
        checkpoint: Path | None = None,
        out: Path | None = None,
        callback: Callable[[Trainer], object] | None = None,
    ) -> list[dict[str, float]]:
        """Train; -> `history`, a dictionary for each epoch.

        `x` is an array of samples, or a dictionary of arrays by the names of the model's inputs; `y` are the targets.
        Each update uses `accumulate` batches of `batch_size`, with the gradient of the mean over all of them. With
        `validation=(xv, yv)`, each epoch ends with `evaluate` on it; with `patience` too, training stops when the
        validation loss has not fallen for that many epochs, and the weights of the best epoch come back.

        `checkpoint` is where `save_checkpoint` writes after every epoch, and when Ctrl-C ends the training after a
        whole step; `out` is where the model is saved at the end. Both are tried before training. `callback(trainer)` is
        called after each update.

        After `Trainer.resume`, `fit` with the same arguments finishes the interrupted one, with the same bits as if
        it had not been interrupted. A loss or gradient that is not finite is a FloatingPointError that names the step
        and the first tensor that went wrong; the weights stay as they were before that step.
        """
        samples, targets = self._checked("x", x, "y", y)
        held = self._checked("validation[0]", *_pair(validation)) if validation is not None else None
        if patience is not None and held is None:
            raise ValueError("patience is given without validation; expected validation=(xv, yv)")
        size = check_batch_size(batch_size, len(targets), self._network.inputs)
        plan = Run(
            epochs=whole("epochs", epochs),
            batch_size=size,
            accumulate=whole("accumulate", accumulate),
            samples=len(targets),
            shuffle=bool(shuffle),
            patience=None if patience is None else whole("patience", patience),
        )
        for name, path in (("checkpoint", checkpoint), ("out", out)):
            if path is not None:
                files.checked_output(name, path, self._file.nbytes)
        if self._run is None or self._run.over:
            self._run, self._best = plan, {}
            self._fits += 1
        else:
            self._run.check_same(plan)
        self._train(self._run, samples, targets, held, progress, checkpoint, callback)
        if out is not None:
            self.save(out)
        return self.history

    def _train(
        self,
        run: Run,
        samples: dict[str, np.ndarray],
        targets: np.ndarray,
        held: tuple[dict[str, np.ndarray], np.ndarray] | None,
        progress: bool | Progress | None,
        checkpoint: Path | None,
        callback: Callable[[Trainer], object] | None,
    ) -> None:
        batches = Batches({**samples, _TARGETS: targets}, min(run.batch_size, run.samples))
        display = shown(progress)
        with Interrupts() as interrupts:
            try:
                while not run.over:
                    order = self._order(run)
                    began = time.perf_counter()
                    display.start(run.epoch + 1, run.epochs, run.samples, run.position)
                    while run.position < run.samples:
                        rows = order[run.position : run.position + run.batch_size * run.accumulate]
                        lr = self._optimizer.lr * self._schedule.factor(run.step, run.steps)
                        sums = self._step(batches, rows, run.batch_size, lr)
                        run.advance(len(rows), sums)
                        self.losses.append(sums.loss / sums.count)
                        display.step(run.position, self._loss.results(run.sums))
                        if callback is not None:
                            callback(self)
                        interrupts.stop_if_asked()
                    results = {"epoch": len(self.history) + 1, "step": self.steps, **self._loss.results(run.sums)}
                    if held is not None:
                        found = self._evaluate(*held, run.batch_size)
                        results.update({f"val_{name}": value for name, value in found.items()})
                        if run.judge(found["loss"]):
                            self._best = {name: w.copy() for name, w in self._weights().items()}
                    self.history.append({**results, "seconds": time.perf_counter() - began})
                    run.next_epoch()
                    display.end(self.history[-1])
                    if run.over and run.patience is not None and self._best:
                        self._network.load(self._best)
                        self._best, self._predictor = {}, None
                    if checkpoint is not None:
                        self.save_checkpoint(checkpoint)
                    interrupts.stop_if_asked()
            except KeyboardInterrupt:
                if checkpoint is not None and interrupts.orderly:
                    self.save_checkpoint(checkpoint)
                raise
            finally:
                if not run.over:  # what failed is not gone on with here; a checkpoint that was saved can be
                    self._run = None
                display.close()

    def _order(self, run: Run) -> np.ndarray:
        """The order of the samples in this epoch: it depends on the seed and on which epoch it is, and on nothing."""
        if not run.shuffle:
            return np.arange(run.samples)
        return np.random.default_rng([self._seed, self._fits, run.epoch]).permutation(run.samples)

    def _step(self, batches: Batches, rows: np.ndarray, size: int, lr: float) -> Sums:
        """One update, by the gradient of the mean loss over those rows."""
        network = self._network
        network.begin_step(self.steps, several=len(rows) > size)
        try:
            sums = self._gradients(batches, rows, size)
            norm = self._updates.norm(network.gradients)
            if not math.isfinite(norm):
                name = self._updates.first_bad(network.gradients)
                what = f"the gradient of {name!r} is not finite" if name else f"the norm of the gradients is {norm}"
                raise FloatingPointError(f"step {self.steps + 1}: {what}; the loss is {sums.loss / sums.count:.4g}")
        except BaseException:
            network.undo_step()
            raise
        clip = 1.0 if self._clip_norm is None else min(1.0, self._clip_norm / (norm + 1e-6))
        self._updates.step(network.gradients, lr, clip)
        self._predictor = None
        return sums

    def _gradients(self, batches: Batches, rows: np.ndarray, size: int) -> Sums:
        """The gradients of the mean loss over those rows, `size` at a time; and the sums of loss and metric."""
        network, total = self._network, NOTHING
        for start in range(0, len(rows), size):
            feeds = dict(batches.gather(rows[start : start + size]))
            targets = feeds.pop(_TARGETS)
            output = network.forward(feeds)
            self._loss.check(output, targets)
            mean_over = self._loss.count(targets) // len(targets) * len(rows)
            sums = self._loss.run(output, targets, network.seed(output), 1 / mean_over)
            if not math.isfinite(sums.loss):
                what = network.first_bad(feeds) or f"{network.output!r}, the model's output"
                raise FloatingPointError(f"step {self.steps + 1}: the loss is {sums.loss}; first went wrong: {what}")
            total += sums
            network.backward()
        return total

    # ---- using it ----

    def evaluate(self, x: Any, y: Any, *, batch_size: int = 256) -> dict[str, float]:
        """Loss and metric on `x` and `y`, by plain ONNX Runtime with the weights as they are now."""
        samples, targets = self._checked("x", x, "y", y)
        return self._evaluate(samples, targets, batch_size)

    def _evaluate(self, samples: dict[str, np.ndarray], targets: np.ndarray, batch_size: int) -> dict[str, float]:
        sums, predict = NOTHING, self._plain()
        size = self._network.batch or whole("batch_size", batch_size)
        check_batch_size(size, len(targets), self._network.inputs)
        for rows, feeds in stretches(samples, size):
            output = predict(feeds)
            self._loss.check(output, targets[rows])
            sums += self._loss.run(output, targets[rows], np.empty_like(output), 1.0)
        return self._loss.results(sums)

    def predict(self, x: Any, *, batch_size: int = 256) -> np.ndarray:
        """The output for `x`, by plain ONNX Runtime with the weights as they are now."""
        samples = checked_inputs("x", x, self._network.inputs)
        count = len(next(iter(samples.values())))
        size = self._network.batch or whole("batch_size", batch_size)
        check_batch_size(size, count, self._network.inputs)
        predict = self._plain()
        return np.concatenate([predict(feeds) for _, feeds in stretches(samples, size)])

    def save(self, path: Path) -> None:
        """Write the model with the weights as they are now; everything else in it keeps its bytes.

        The file is whole or absent. Weights in files of their own are written to such files beside it.
        """
        self._file.save(path, self._weights())

    # ---- checkpoints ----

    def save_checkpoint(self, path: Path) -> None:
        """Write all that this training is, the model included, to one file, which is whole or absent."""
        states = {
            f"{kind}/{name}": array for name, kinds in self._updates.states.items() for kind, array in kinds.items()
        }
        best = {f"best/{name}": array for name, array in self._best.items()}
        state = {
            "loss": self._loss.name,
            "optimizer": self._optimizer.settings(),
            "trainable": list(self._network.parameters),
            "seed": self._seed,
            "schedule": self._schedule.settings(),
            "clip_norm": self._clip_norm,
            "output": self._network.output,
            "steps": self.steps,
            "fits": self._fits,
            "run": None if self._run is None else self._run.as_json(),
            "history": self.history,
            "losses": self.losses,
        }
        checkpoint.write(path, state, {**states, **best}, self._file, self._weights())

    @classmethod
    def resume(cls, path: Path) -> Trainer:
        """The trainer that `save_checkpoint` wrote. `fit` goes on where it was, with the same bits."""
        found = checkpoint.read(path)
        state = found.state
        trainer = cls(
            found.model,
            loss=state["loss"],
            optimizer=optimizers.from_settings(state["optimizer"]),
            trainable=state["trainable"],
            seed=state["seed"],
            schedule=schedules.from_settings(state["schedule"]),
            clip_norm=state["clip_norm"],
            output=state["output"],
        )
        if found.folder is not None:
            weakref.finalize(trainer, shutil.rmtree, found.folder, ignore_errors=True)
        trainer._updates.steps, trainer._fits = state["steps"], state["fits"]
        for name, kinds in trainer._updates.states.items():
            for kind, array in kinds.items():
                np.copyto(array, found.arrays[f"{kind}/{name}"])
        best = {name.partition("/")[2]: array for name, array in found.arrays.items() if name.startswith("best/")}
        trainer._best = best
        trainer._run = None if state["run"] is None else Run.from_json(state["run"])
        trainer.history, trainer.losses = state["history"], state["losses"]
        return trainer

    # ---- within ----

    def _weights(self) -> dict[str, np.ndarray]:
        """The weights that differ from the file's: those that are trained, and running statistics."""
        return self._network.weights()

    def _plain(self) -> Predictor:
        if self._predictor is None:
            self._predictor = Predictor(self._file, self._weights(), self._network.output)
        return self._predictor

    def _checked(self, x_name: str, x: Any, y_name: str, y: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        samples, targets = checked_inputs(x_name, x, self._network.inputs), arrays.array(y_name, y)
        count = len(next(iter(samples.values())))
        if targets.ndim == 0 or len(targets) != count:
            raise ValueError(f"{y_name} has shape {targets.shape}; expected {count} samples, as many as {x_name}")
        self._loss.check_targets(y_name, targets, self._network.port)
        return samples, targets


def _pair(validation: Any) -> tuple[Any, str, Any]:
    if not isinstance(validation, (tuple, list)) or len(validation) != 2:
        raise TypeError(f"validation is {type(validation).__name__}; expected a pair (xv, yv)")
    return validation[0], "validation[1]", validation[1]


__all__ = ["Trainer"]
