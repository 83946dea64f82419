"""The commands `train`, `demo` and `bench` of `backstroke`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import files
from .losses import LOSSES
from .schedules import SCHEDULES


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    train = commands.add_parser(
        "train",
        help="fine-tune an ONNX model",
        description="Fine-tune an ONNX model, and write it with its new weights and nothing else changed.",
    )
    train.set_defaults(run=_train)
    train.add_argument("model", nargs="?", type=Path, help="the .onnx file; not with --resume")
    train.add_argument("--data", type=Path, required=True, help=".npz with x, y (xv, yv), or a folder of image folders")
    train.add_argument("--out", type=Path, required=True, help="where to write the tuned model")
    train.add_argument("--loss", choices=LOSSES, default="cross_entropy", help="default: cross_entropy")
    train.add_argument("--epochs", type=int, default=3, help="default: 3")
    train.add_argument("--batch-size", type=int, default=32, help="default: 32")
    train.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches for each update (default: 1)")
    train.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="default: adamw")
    train.add_argument("--lr", type=float, help="learning rate (default: 1e-3, for sgd 1e-2)")
    train.add_argument("--momentum", type=float, default=0.9, help="of sgd (default: 0.9)")
    train.add_argument("--weight-decay", type=float, help="default: 1e-2, for sgd 0")
    train.add_argument("--schedule", choices=[name.lower() for name in SCHEDULES], default="constant")
    train.add_argument("--warmup", type=float, default=0.0, help="steps, or a share of all, in which the rate rises")
    train.add_argument("--clip-norm", type=float, help="scale gradients of a larger norm down to this one")
    train.add_argument("--trainable", default="all", help='"all" (default), "last:2", or names with commas between')
    train.add_argument("--output", help="the output that the loss is taken of, where the model has several")
    train.add_argument("--validation", type=float, metavar="SHARE", help="hold out that share of the data")
    train.add_argument("--patience", type=int, metavar="N", help="stop after N epochs without a better validation loss")
    train.add_argument("--seed", type=int, default=0, help="default: 0")
    train.add_argument("--mean", type=_numbers, default=[0.0], help="of images, for each channel: 0.485,0.456,0.406")
    train.add_argument("--std", type=_numbers, default=[1.0], help="of images, for each channel")
    train.add_argument("--checkpoint", type=Path, help="where every epoch and Ctrl-C save (default: OUT.checkpoint)")
    train.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="go on with an interrupted training")
    train.add_argument("--plot", type=Path, metavar="PNG", help="draw the learning curves")
    train.add_argument("--threads", type=int, help="how many threads compute")
    train.add_argument("--json", action="store_true", help="a line of JSON for each epoch, and one at the end")

    demo = commands.add_parser("demo", help="train a small model on handwritten digits, in seconds")
    demo.set_defaults(run=_demo)
    demo.add_argument("--folder", type=Path, default=Path("demo"), help="where the files go (default: demo)")
    demo.add_argument("--json", action="store_true", help="for machines")

    bench = commands.add_parser("bench", help="time a training step of a small model, and the parts of it")
    bench.set_defaults(run=_bench)
    bench.add_argument("model", nargs="?", type=Path, help="an .onnx file (default: the demo's model)")
    bench.add_argument("--batch-size", type=int, default=32, help="default: 32")
    bench.add_argument("--threads", type=int, help="how many threads compute")
    bench.add_argument("--json", action="store_true", help="for machines")


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _threads(chosen: argparse.Namespace) -> None:
    if chosen.threads is not None:
        from ..machine import set_num_threads

        set_num_threads(chosen.threads)


def _train(chosen: argparse.Namespace) -> int:
    from . import curves, sources
    from .optimizers import SGD, AdamW, Optimizer
    from .progress import JsonLines
    from .trainer import Trainer

    def note(text: str) -> None:
        if not chosen.json:
            print(text, file=sys.stderr)

    if (chosen.model is None) == (chosen.resume is None):
        raise ValueError("give either a model, or --resume with a checkpoint")
    _threads(chosen)
    saved = chosen.checkpoint or chosen.resume or chosen.out.with_name(chosen.out.name + ".checkpoint")
    for name, path in (("out", chosen.out), ("checkpoint", saved), ("plot", chosen.plot)):
        if path is not None:
            files.checked_output(name, path)
    if chosen.resume is not None:
        trainer = Trainer.resume(chosen.resume)
    else:
        settings = {"lr": chosen.lr, "weight_decay": chosen.weight_decay}
        given = {name: value for name, value in settings.items() if value is not None}
        sgd = chosen.optimizer == "sgd"
        optimizer: Optimizer = SGD(momentum=chosen.momentum, **given) if sgd else AdamW(**given)
        schedule = next(kind for name, kind in SCHEDULES.items() if name.lower() == chosen.schedule)
        trainable = chosen.trainable
        trainer = Trainer(
            chosen.model,
            loss=chosen.loss,
            optimizer=optimizer,
            trainable=trainable if trainable == "all" or ":" in trainable else trainable.split(","),
            seed=chosen.seed,
            schedule=schedule(warmup=chosen.warmup),
            clip_norm=chosen.clip_norm,
            output=chosen.output,
        )
    data = sources.load(chosen.data, trainer.inputs, mean=chosen.mean, std=chosen.std, note=note)
    if chosen.validation is not None:
        data = data.split(chosen.validation, chosen.seed)
    run = trainer.unfinished
    plan: Any = chosen if run is None else run
    if run is not None:
        note(f"goes on in epoch {run.epoch + 1} of {run.epochs}, after {run.position} of {run.samples} samples")
    try:
        trainer.fit(
            data.x,
            data.y,
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            accumulate=plan.accumulate,
            shuffle=run is None or run.shuffle,
            validation=data.validation,
            patience=plan.patience,
            progress=JsonLines() if chosen.json else True,
            checkpoint=saved,
            out=chosen.out,
        )
    except KeyboardInterrupt:
        note(f"interrupted after {trainer.steps} steps; go on with --resume {saved}")
        raise
    if chosen.plot is not None:
        curves.picture(trainer, chosen.plot)
    if chosen.json:
        made = {"out": str(chosen.out), "checkpoint": str(saved), "plot": chosen.plot and str(chosen.plot)}
        print(json.dumps({**made, "steps": trainer.steps, "classes": list(data.classes)}))
    else:
        print(curves.text(trainer.losses, title="training loss, by step (logarithmic)"))
        print(f"wrote {chosen.out}" + (f" and {chosen.plot}" if chosen.plot else ""))
    return 0


def _demo(chosen: argparse.Namespace) -> int:
    from . import demo

    try:
        chosen.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder: {str(chosen.folder)!r} cannot be made: {error.strerror}") from error
    found = demo.run(chosen.folder, progress=not chosen.json)
    if chosen.json:
        print(json.dumps({name: value for name, value in found.items() if name != "curve"}, indent=1))
        return int(found["accuracy"] < demo.AT_LEAST)
    return int(not demo.report(found))


def _bench(chosen: argparse.Namespace) -> int:
    from . import bench

    _threads(chosen)
    found = bench.run(chosen.model, chosen.batch_size)
    if chosen.json:
        print(json.dumps(found, indent=1))
    else:
        print(bench.text(found))
    return 0
