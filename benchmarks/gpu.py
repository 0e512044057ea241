"""All figures of a GPU with one command.

    python benchmarks/gpu.py --budget 540            # again, to go on where it ended
    python benchmarks/gpu.py --rehearse              # the same rows on a CPU, with small sizes

Items run in the order of their worth, each in a process with a limit of its own, and append a row
to --results as soon as it is measured. A row that is there is not measured again, and an item that
was ended by its limit is not tried again. The end prints one line a row. Items that need a package
or another device say so in their row. See `gpu_items.py` for what they measure.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from gpu_items import ITEMS, TARGETS, Item, Row, work

PATH = machine.RESULTS / "gpu.jsonl"
REHEARSED_SECONDS = 300.0
"""Limit of an item in a rehearsal."""


def main() -> int:
    """Runs the items, or one of them in a process of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=540, help="seconds of all items")
    parser.add_argument("--items", nargs="*", choices=ITEMS, default=list(ITEMS), metavar="ITEM")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on a CPU")
    parser.add_argument("--results", type=Path, default=None, help=f"rows; by default {PATH.name}")
    parser.add_argument("--list", action="store_true", help="print the items, and end")
    parser.add_argument("--limit", type=float, default=0, help="seconds of an item, not its own")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--done", default="[]", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        for name, item in ITEMS.items():
            print(f"{name:24} {item.seconds:4.0f} s  {item.about}")
        return 0
    if args.work:
        work(args.work, set(json.loads(args.done)), rehearse=args.rehearse)
        return 0
    path = args.results or (Path("gpu_rehearsal.jsonl") if args.rehearse else PATH)
    run(args.items, path, args.budget, rehearse=args.rehearse, limit=args.limit)
    for row in machine.read_rows(path):
        print(line(row))
    return 0


def run(names: list[str], path: Path, budget: float, *, rehearse: bool, limit: float = 0) -> None:
    """Runs items until the budget is spent; see the module's docstring."""
    ends = time.monotonic() + budget
    for name in names:
        rows = machine.read_rows(path)
        if any(row["item"] == name and row["name"] == "" for row in rows):
            continue  # finished, or ended by its limit
        left = ends - time.monotonic()
        own = limit or (REHEARSED_SECONDS if rehearse else ITEMS[name].seconds)
        if left < min(own, 10):
            print(f"{name}: no time left", flush=True)
            continue
        done = [row["name"] for row in rows if row["item"] == name]
        outcome = one(name, ITEMS[name], path, done, min(own, left), rehearse=rehearse)
        if outcome["ok"] or own <= left:  # cut short by the budget alone, it may go on next time
            append(path, {"item": name, "name": "", **outcome})


def one(
    name: str, item: Item, path: Path, done: list[str], seconds: float, *, rehearse: bool
) -> Row:
    """Runs an item in a process; returns whether it ended by itself, and how long it took."""
    command = [sys.executable, __file__, "--work", name, "--done", json.dumps(done)]
    env = {**os.environ, **item.env, **({"JAX_PLATFORMS": "cpu"} if rehearse else {})}
    started = time.monotonic()
    process = subprocess.Popen(
        command + ["--rehearse"] * rehearse,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
    reader.start()
    ended = threading.Event()

    def end() -> None:
        ended.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    for text in process.stdout:
        if text.startswith("row "):
            row = {"item": name, **json.loads(text.removeprefix("row "))}
            append(path, row)
            print(line(row), flush=True)
    code = process.wait()
    timer.cancel()
    reader.join(timeout=5)
    took = round(time.monotonic() - started, 1)
    if ended.is_set():
        return {"ok": False, "why": f"ended after {seconds:.0f} s", "seconds": took}
    if code:
        why = next((x.strip() for x in reversed(errors) if x.strip()), f"exit code {code}")
        return {"ok": False, "why": why[:300], "seconds": took}
    return {"ok": True, "seconds": took}


def append(path: Path, row: Row) -> None:
    """Adds a row to a file, on the disk when this returns."""
    row = {**row, "date": datetime.date.today().isoformat()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


FIGURES: dict[str, Callable[[Any], str]] = {
    "compile_seconds": lambda x: f"compiled in {x:.1f} s",
    "update_us": lambda x: f"{x:,.0f} us per update",
    "launches": lambda x: f"{x:,} launches",
    "launch_us": lambda x: f"{x:.2f} us per launch",
    "peak_gib": lambda x: f"peak {x:.2f} GiB",
    "predicted": lambda x: f"predicted {x[0]:,.0f}-{x[1]:,.0f}",
}


def line(row: Row) -> str:
    """A row in words: name, sizes, ok or the reason, and its figures."""
    parts = [f"{row['item']}: {row['name']}" if row["name"] else row["item"]]
    parts += [row["sizes"]] if "sizes" in row else []
    parts.append("ok" if row.get("ok") else row.get("why", "failed"))
    parts += [words(row[key]) for key, words in FIGURES.items() if row.get(key) is not None]
    if rounds := row.get("rounds"):
        low, middle, high = min(rounds), row["steps_per_second"], max(rounds)
        parts.append(f"{middle:,.0f} ({low:,.0f}-{high:,.0f}) steps/s")
        target = None if row.get("rehearsed") else TARGETS.get(row["name"])
        if target:
            parts.append(f"target {target:,.0f} {'met' if middle >= target else 'missed'}")
    if row.get("ratio") is not None:
        parts.append(f"{row['ratio']:.2f} times {row['rival']}")
    parts += [f"{key} {x}" for key, x in row.get("facts", {}).items()]
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
