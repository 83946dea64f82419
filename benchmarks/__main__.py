"""Time every problem against every peer that is installed: `python -m benchmarks [--only REGEX] [--json FILE]`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import backstroke as bs
import peers
from backstroke.registry import OPS, moved_bytes

from . import limits, report, startup, training
from .problems import PROBLEMS
from .timing import interleaved


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help='problems whose "group: text" has this regular expression')
    parser.add_argument("--peers", help="only these, by commas (default: all that are installed)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--keep", action="store_true", help="what that file has of other problems stays in it")
    parser.add_argument("--threads", type=int, default=2, help="threads for everybody (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="turns that everybody gets (default 7)")
    arguments = parser.parse_args()

    found, absent = peers.installed()
    if arguments.peers is not None:
        found = [found[0], *(peer for peer in found[1:] if peer.name in arguments.peers.split(","))]
    for peer in found:
        peer.threads(arguments.threads)
    versions = {peer.name: peer.version() for peer in found}
    machine = {"cpu": bs.info()["cpu"], "cpus": os.cpu_count(), "python": platform.python_version()}
    print(f"{machine}, {arguments.threads} threads; " + ", ".join(f"{n} {v}" for n, v in versions.items()))
    for name, why in absent.items():
        print(f"without {name}: {why}")
    print("ours as called and with the output given, its speed and share of the machine's limit in the same rounds;")
    print("then how many times as long the others take, as called and with the output given\n")

    timed = []
    for problem in PROBLEMS:
        if not re.search(arguments.only, f"{problem.group}: {problem}"):
            continue
        data = problem.arguments()
        out = problem.output(data)
        able = [peer for peer in found if not problem.hopeless(peer.name)]
        ways = {peer.name: calls for peer in able if (calls := peer.calls(problem, data, out))}
        jobs = [(name, how, call) for name, calls in ways.items() for how, call in enumerate(calls) if call]
        bounds = limits.limits(problem, data, out)
        jobs += [("limit", 2, bound.call) for bound in bounds]
        seconds = interleaved([call for *_, call in jobs], arguments.rounds)
        times: list[dict[str, float]] = [{}, {}, {}]
        scales = [1.0] * (len(jobs) - len(bounds)) + [bound.scale for bound in bounds]
        for (name, how, _), second, scale in zip(jobs, seconds, scales, strict=True):
            times[how][name] = min(second * scale, times[how].get(name, second * scale))
        moved = moved_bytes(data, out)
        timed.append(report.Timed(problem, moved, problem.operations, times[0], times[1], times[2].get("limit")))
        print(report.row(timed[-1]), flush=True)

    for network in training.PROBLEMS:
        if re.search(arguments.only, f"{network.group}: {network}") and len(found) > 1:
            seconds, without = training.seconds(network, arguments.threads, min(arguments.rounds, 5))
            absent |= {f"{name}, {network}": why for name, why in without.items()}
            timed.append(report.Timed(network, 0, 0, seconds, {"backstroke": seconds["backstroke"]}))
            print(report.row(timed[-1]), flush=True)

    overhead, first = None, {}
    if not arguments.only:
        overhead = startup.call_overhead()
        first = startup.first_calls([op.name for op in OPS]) | startup.resnet_kernels()
    before = json.loads(arguments.json.read_text()) if arguments.keep and arguments.json.exists() else None
    if before:
        overhead, first = overhead or before["overhead"], first or before["first"]
        timed = _joined(timed, before["problems"])
    if overhead:
        print(f"\nReluGrad of 16 elements: {overhead * 1e6:.2f} us a call, all told")
        print(
            f"import {first['import'] * 1e3:.0f} ms; slowest first call of an op: {first['cold'] * 1e3:.1f} ms cold, "
            f"{first['from cache'] * 1e3:.1f} ms from the disk cache"
        )
    bars = report.bars(timed) + report.times(first)
    print("\nbars:", *bars, sep="\n")
    if arguments.json:
        result = {
            "machine": machine,
            "threads": arguments.threads,
            "versions": {**(before or {}).get("versions", {}), **versions},
            "date": f"{datetime.date.today()}",
            "absent": absent,
            "bandwidth": report.bandwidth(timed),
            "peak": report.peak(timed),
            "first": first,
            "overhead": overhead,
            "problems": [each.as_json() for each in timed],
            "bars": bars,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def _joined(timed: list[report.Timed], before: list[dict[str, Any]]) -> list[report.Timed]:
    """What was timed now, and what a file has of other problems, in the order of the table."""
    old = {(each["group"], each["problem"]): each for each in before}
    new = {(each.problem.group, str(each.problem)): each for each in timed}
    result = []
    for problem in (*PROBLEMS, *training.PROBLEMS):
        key = problem.group, str(problem)
        if key in new:
            result.append(new[key])
        elif key in old:
            result.append(report.Timed.from_json(problem, old[key]))
    return result


if __name__ == "__main__":
    main()
