"""The command `backstroke`: `tour` shows every gradient there is, `info` what it runs on; the rest is for training.

The exit code is 0 where all went well, 1 where a result is wrong or training diverged, 2 where the arguments or what
they name will not do, and 130 where Ctrl-C ended it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import machine
from .errors import UnsupportedError
from .graph import cli as graph_cli
from .registry import OPS, Op, moved_bytes, results
from .training import cli as training_cli

# What adds further commands to the parser; each sets `run`, which takes what was chosen and gives the exit code.
_OTHERS: tuple[Callable[[Any], None], ...] = (training_cli.add_commands, graph_cli.add_commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; -> the exit code."""
    parser = argparse.ArgumentParser(prog="backstroke", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tour = commands.add_parser("tour", help="compute every gradient, check it against its float64 twin, and time it")
    tour.add_argument("--json", action="store_true", help="for machines")
    tour.set_defaults(run=lambda chosen: _tour(chosen.json))
    info = commands.add_parser("info", help="versions, target, threads, caches")
    info.add_argument("--json", action="store_true", help="for machines")
    info.set_defaults(run=lambda chosen: _info(chosen.json))
    for add in _OTHERS:
        add(commands)
    chosen = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = chosen.run
    try:
        return run(chosen)
    except FloatingPointError as error:
        return _said(error, 1)
    except (ValueError, TypeError, UnsupportedError, OSError) as error:
        return _said(error, 2)
    except KeyboardInterrupt:
        return _said("interrupted", 130)


def _said(what: object, code: int) -> int:
    print(f"backstroke: {what}", file=sys.stderr)
    return code


def _info(as_json: bool) -> int:
    found = machine.info()
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:22} {value}")
    return 0


def _tour(as_json: bool) -> int:
    """Every op on a tensor of an everyday size, and on a small one that its twin can check."""
    found = machine.info()
    if not as_json:
        print(f"Backstroke {found['backstroke']} on {found['cpu']}, {found['threads']} threads, LLVM {found['llvm']}\n")
        print(f"{'function':26}{'type':10}{'shape':>18}{'largest error':>18}{'time':>12}{'speed':>14}")
    rows = [_visit(op, dtype) for op in OPS for dtype in op.dtypes if dtype.name in ("float32", "bfloat16")]
    failed = [row for row in rows if not row["right"]]
    if as_json:
        print(json.dumps(rows, indent=1))
        return bool(failed)
    for row in rows:
        print(
            f"{row['op']:26}{row['type']:10}{row['shape']:>18}{row['error']:14.1e} eps{row['milliseconds']:9.2f} ms"
            f"{row['gigabytes']:9.1f} GB/s" + ("" if row["right"] else "   WRONG")
        )
    print(f"\n{len(rows) - len(failed)} of {len(rows)} agree with their float64 twins.")
    return bool(failed)


def _visit(op: Op, dtype: np.dtype) -> dict[str, object]:
    rng = np.random.default_rng(0)
    arguments, keywords = op.example(rng, op.small, dtype)
    got, want = (results(f(*arguments, **keywords)) for f in (op.function, op.reference))
    # In units of the type's eps, of the largest number in the result.
    eps = float(np.finfo(np.float32).eps) if dtype.name == "float32" else 2.0**-8
    pairs = [(g.astype(np.float64), w) for g, w in zip(got, want, strict=True)]
    error = max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs) / eps
    arguments, keywords = op.example(rng, op.large, dtype)
    seconds = _median(lambda: op.function(*arguments, **keywords))
    return {
        "op": op.name,
        "type": dtype.name,
        "shape": "x".join(map(str, op.large.shape)),
        "error": error,
        "right": error <= max(1, op.ulp),
        "milliseconds": seconds * 1e3,
        "gigabytes": moved_bytes(arguments, op.function(*arguments, **keywords)) / seconds / 1e9,
    }


def _median(call: Callable[[], object], rounds: int = 7) -> float:
    times = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[rounds // 2]


if __name__ == "__main__":
    sys.exit(main())
