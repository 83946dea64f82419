"""Time every problem against every peer that is installed: `python -m benchmarks [--only REGEX] [--json FILE]`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
from pathlib import Path

import backstroke as bs
import peers
from backstroke.registry import OPS, moved_bytes

from . import limits, report, startup
from .problems import PROBLEMS
from .timing import interleaved


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="problems whose text matches this regular expression")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--threads", type=int, default=2, help="threads for everybody (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="turns that everybody gets (default 7)")
    arguments = parser.parse_args()

    found, absent = peers.installed()
    for peer in found:
        peer.threads(arguments.threads)
    versions = {peer.name: peer.version() for peer in found}
    machine = {"cpu": bs.info()["cpu"], "cpus": os.cpu_count(), "python": platform.python_version()}
    print(f"{machine}, {arguments.threads} threads; " + ", ".join(f"{n} {v}" for n, v in versions.items()))
    for name, why in absent.items():
        print(f"without {name}: {why}")
    print("ours as called and with the output given, its GB/s and share of the memory's limit in the same rounds;")
    print("then how many times as long the others take, as called and with the output given\n")

    timed = []
    for problem in PROBLEMS:
        if not re.search(arguments.only, str(problem)):
            continue
        data = problem.arguments()
        out = problem.output(data)
        ways = {peer.name: calls for peer in found if (calls := peer.calls(problem, data, out))}
        jobs = [(name, how, call) for name, calls in ways.items() for how, call in enumerate(calls) if call]
        jobs += [("limit", 2, call) for call in limits.read_read_write(data, out)]
        moved = moved_bytes(data, out)
        seconds = interleaved([call for *_, call in jobs], arguments.rounds)
        times: list[dict[str, float]] = [{}, {}, {}]
        for (name, how, _), second in zip(jobs, seconds, strict=True):
            times[how][name] = min(second, times[how].get(name, second))
        timed.append(report.Timed(problem, moved, times[0], times[1], times[2].get("limit")))
        print(report.row(timed[-1]), flush=True)

    overhead, first = startup.call_overhead(), startup.first_calls([op.name for op in OPS])
    print(f"\nReluGrad of 16 elements: {overhead * 1e6:.2f} us a call, all told")
    print(
        f"import {first['import'] * 1e3:.0f} ms; slowest first call of an op: {first['cold'] * 1e3:.1f} ms cold, ",
        end="",
    )
    print(f"{first['from cache'] * 1e3:.1f} ms from the disk cache\n\nbars:")
    for line in report.bars(timed):
        print(line)
    if arguments.json:
        result = {
            "machine": machine,
            "threads": arguments.threads,
            "versions": versions,
            "date": f"{datetime.date.today()}",
            "absent": absent,
            "bandwidth": report.bandwidth(timed),
            "first": first,
            "overhead": overhead,
            "problems": [each.as_json() for each in timed],
            "bars": report.bars(timed),
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
