"""Measure everything against every peer that is installed: `python -m benchmarks [--only REGEX] [--json FILE]`.

A long run can be split: `--json FILE --keep --minutes 4`, again and again, each time goes on with what that file lacks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import backstroke as bs
import peers

from . import report, summary, training
from .measuring import SECTIONS, Circumstances, Work, works
from .problems import PROBLEMS


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help='what has this regular expression in its "group: text"')
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few problems of each family, few rounds: for CI")
    parser.add_argument("--peers", help="only these, by commas (default: all that are installed)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--keep", action="store_true", help="what that file has of other problems stays in it")
    parser.add_argument("--minutes", type=float, help="stop then; with --keep, what the file has is not measured again")
    parser.add_argument("--threads", type=int, default=2, help="threads for everybody (default 2)")
    parser.add_argument("--rounds", type=int, help="turns that everybody gets (default 7; quick: 3)")
    arguments = parser.parse_args()

    found, absent = peers.installed()
    if arguments.peers is not None:
        found = [found[0], *(peer for peer in found[1:] if peer.name in arguments.peers.split(","))]
    for peer in found:
        peer.threads(arguments.threads)
    now = Circumstances(found, arguments.threads, arguments.rounds or (3 if arguments.quick else 7))
    versions = {peer.name: peer.version() for peer in found}
    machine = {"cpu": bs.info()["cpu"], "cpus": os.cpu_count(), "python": platform.python_version()}
    print(f"{machine}, {arguments.threads} threads; " + ", ".join(f"{n} {v}" for n, v in versions.items()))
    for name, why in absent.items():
        print(f"without {name}: {why}")
    print("ours as called and with the output given, its speed and share of the machine's limit in the same rounds;")
    print("then how many times as long the others take, as called and with the output given\n")

    before: dict[str, Any] = {}
    if arguments.keep and arguments.json and arguments.json.exists():
        before = json.loads(arguments.json.read_text())
        if before["quick"] and not arguments.quick:  # fewer rounds: not what this run is for
            before = {}
    head = {
        "machine": machine,
        "threads": arguments.threads,
        "versions": {**before.get("versions", {}), **versions},
        "date": f"{datetime.date.today()}",
        "quick": arguments.quick,
        "absent": absent,
    }
    records = {(section, each["name"]): each for section in SECTIONS for each in before.get(section, ())}
    wanted = [w for w in works() if w.section in arguments.sections.split(",") and re.search(arguments.only, w.name)]
    wanted = [w for w in wanted if w.quick or not arguments.quick]
    if arguments.minutes:
        # What is not there; then what was disturbed, which is measured again.
        done = {key: not each.get("disturbed") for key, each in records.items()}
        wanted = [w for w in wanted if not done.get((w.section, w.name))]
        wanted.sort(key=lambda w: (w.section, w.name) in done)
    start, left = time.monotonic(), len(wanted)
    figures = head | _figures(records)
    for work in wanted:
        if arguments.minutes and time.monotonic() - start > 60 * arguments.minutes:
            break
        records[work.section, work.name] = {"name": work.name, **work.measure(now)}
        print(_line(work, records[work.section, work.name]), flush=True)
        left -= not records[work.section, work.name].get("disturbed")
        figures = head | _figures(records)
        if arguments.json:  # at once: what was measured is not lost, whatever ends the run
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(summary.dumps(figures))
    print("\nbars:", *figures["bars"], sep="\n")
    if left:
        print(f"\n{left} of {len(wanted)} are left, or were disturbed by what else ran: once more, with --keep")


def _figures(records: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """The sections in the order of the tables, and what follows from them."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        keys = [(work.section, work.name) for work in works() if work.section == section]
        found[section] = [records[key] for key in keys if key in records]
    problems, networks = ({each.name: each for each in table} for table in (PROBLEMS, training.PROBLEMS))
    timed = [report.Timed.from_json(problems[each["name"]], each) for each in found["problems"]]
    for each in (record for record in found["training"] if "backstroke" in record["seconds"]):
        ours = {"backstroke": each["seconds"]["backstroke"]}
        timed.append(report.Timed(networks[each["name"]], 0, 0, each["seconds"], ours))
    bars = report.bars(timed) + report.times(found["startup"])
    return found | {"of": len(PROBLEMS), "bandwidth": report.bandwidth(timed), "peak": report.peak(timed), "bars": bars}


def _line(work: Work, record: dict[str, Any]) -> str:
    if work.section in ("problems", "sizes"):
        return report.row(record)
    return f"{work.name}: " + json.dumps({name: value for name, value in record.items() if name != "name"})


if __name__ == "__main__":
    main()
