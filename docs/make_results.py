"""Write the measured tables of the pages from benchmarks/results/; `--check` only compares.

    python docs/make_results.py

The lines between `<!-- NAME -->` and `<!-- end -->` are those of a table of docs/tables.yaml, or of
a function of `TEXTS`. Published numbers and remarks come from docs/published.yaml. The first
comment of each measured config gets its return.
"""

import functools
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import ablations as ablation_benchmark  # noqa: E402
import harness  # noqa: E402

ROWS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md"]
PAGES += [
    ROOT / "docs" / f"{name}.md"
    for name in ("playground", "policies", "results", "results_details")
]
CONFIGS = ROOT / "configs"
PUBLISHED, TABLES = (
    yaml.safe_load((ROOT / "docs" / f"{name}.yaml").read_text(encoding="utf-8"))
    for name in ("published", "tables")
)
HOST_PACKAGES = ("jax", "envpool", "gymnasium", "mujoco", "stable_baselines3", "sbx-rl")
NAMES = {
    "ours": "purejaxppo",
    "before": "version 0.2.0",
    "brax": "Brax's PPO",
    "engine": "our client, plain loop",
    "imports": "importing JAX and Brax",
    "loop": "our client, compiled loop",
    "program": "compiling the training program",
    "rows": "our client, plain loop",
}
"""Contenders without a description in their rows."""
OURS = "purejaxppo"
PEERS = {
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "brax": "Brax's PPO, same sizes",
    "brax-notebook": "Brax's PPO, sizes of its notebook",
}
"""Libraries in peer_returns.jsonl and their names in tables and plots."""
DEVICES = {"Intel(R) Xeon(R) Processor": "Intel Xeon", "NVIDIA H100 80GB HBM3": "NVIDIA H100"}
"""Short names of processors."""
Row = dict[str, Any]
Rows = list[Row]


def read(name: str) -> Rows:
    """Read a results file; [] if it does not exist."""
    path = ROWS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def group(rows: Rows, *keys: str) -> dict[tuple[Any, ...], Rows]:
    """Group rows by the values of some keys, in order of appearance."""
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def markdown(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Format a table in Markdown, between empty lines."""
    lines = [f"| {' | '.join(head)} |", "| --- " * len(list(head)) + "|"]
    return ["", *lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def tables(name: str) -> list[str]:
    """Format the block of an entry of docs/tables.yaml: one table, or several with headings."""
    spec = TABLES[name]
    prepare = PREPARED.get(spec["rows"], functools.partial(read, spec["rows"]))
    all_rows = [complete(row) for row in prepare()]
    lines = [] if all_rows else ["", "Not measured yet.", ""]
    for rows in group(all_rows, *spec.get("split", ())).values():
        present = {row.get("contender") for row in rows}
        ratios = {base: x for base, x in spec.get("ratios", {}).items() if base in present}
        cells = []
        for alike in group(rows, *spec.get("same", ())).values():
            values = {row.get("contender"): row.get("value") for row in alike}
            for row in alike:
                cells.append([text.format(**row) for text in spec["columns"].values()])
                cells[-1] += [
                    f"{row['value'] / values[base]:.2f}" if base in values else ""
                    for base in ratios
                ]
        lines += ["", spec.get("heading", "").format(**rows[0])]
        lines += markdown([*spec["columns"], *ratios.values()], cells)
    return lines


def complete(row: Row) -> Row:
    """Add fields for docs/tables.yaml, as far as a row has what they need.

    These are `about` (name of the contender), `value` (steps per second, or the median of rounds),
    `range` and `count` (of rounds), `where` (the processor) and `sizes_text`.
    """
    row = {"about": NAMES.get(row.get("contender", ""), row.get("contender"))} | row
    if "rounds" in row:
        row["value"] = statistics.median(row["rounds"])
        row["range"] = f"{min(row['rounds']):,} to {max(row['rounds']):,}"
        row["count"] = len(row["rounds"])
    row["value"] = row.get("steps_per_second", row.get("value"))
    if "cores" in row:
        row["where"] = f"{row['cores']} x {DEVICES.get(row['device'], row['device'])}"
    return row | {"sizes_text": pairs(row.get("sizes", {}))}


def pairs(sizes: Row) -> str:
    """Format sizes: num_envs 64, hidden [64, 64]."""
    return ", ".join(f"{key} {value}" for key, value in sizes.items())


def mean_std(values: list[float], digits: int | None = None) -> str:
    """Format 12.3 ± 4.5, the mean and the standard deviation; the mean alone of one value."""
    mean = statistics.mean(values)
    if digits is None:
        digits = 1 if abs(mean) >= 2 else 2
    std = f" ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{mean:,.{digits}f}{std}"


@functools.cache
def env_name(config: str) -> str:
    """Return the environment of a config."""
    return yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))["env"]["name"]


def trainings() -> list[Rows]:
    """Return the rows of each config and flags, ordered by environment.

    Rows of the device and number of cores with the most seeds come first.
    """
    rows = []
    for seeds in group(read("learning"), "config", "flags").values():
        by_device = sorted(group(seeds, "device", "cores").values(), key=len, reverse=True)
        rows.append([row for rows_of_device in by_device for row in rows_of_device])
    return sorted(rows, key=lambda seeds: (env_name(seeds[0]["config"]), seeds[0]["flags"]))


def lasts(seeds: Rows) -> list[float]:
    """Return the mean returns of the last checkpoints."""
    return [seed["last_return_mean"] for seed in seeds]


def bests(seeds: Rows) -> list[float]:
    """Return the mean returns of the best checkpoints."""
    return [seed["return_mean"] for seed in seeds]


def several_seeds() -> Rows:
    """Return a row per training with several seeds."""
    return [training_row(seeds) for seeds in trainings() if len(seeds) > 1]


def one_seed() -> Rows:
    """Return a row per training with one seed."""
    return [training_row(seeds) for seeds in trainings() if len(seeds) == 1]


def training_row(seeds: Rows) -> Row:
    """Return the fields of a training: means over its seeds, as numbers or text.

    Seconds are means over the rows with the first row's device and number of cores.
    """
    first, timed = seeds[0], on_equal_hardware(seeds, seeds[0])
    means = {key: statistics.mean(x[key] for x in timed) for key in ("train_seconds", "seconds")}
    means["env_steps"] = statistics.mean(seed["env_steps"] for seed in seeds)
    rates = [seed.get("last_success_rate") for seed in seeds]
    return (
        first
        | means
        | {
            "label": label(first["config"], first["flags"]),
            "seeds": len(seeds),
            "last": mean_std(lasts(seeds)),
            "success": "" if None in rates else f" (success {statistics.mean(rates):.1%})",
            "worst": mean_std([min(lasts(seeds))]),
            "top": mean_std([max(lasts(seeds))]),
            "best": mean_std(bests(seeds)),
            "published": published(first["config"]),
            "steps": means["env_steps"] / 1e6,
        }
    )


def label(config: str, flags: str = "") -> str:
    """Format the name of a config, with a footnote for flags."""
    name = Path(config).stem
    return f"`{name}`[^flags-{slug(f'{name} {flags}')}]" if flags else f"`{name}`"


def flags() -> list[str]:
    """Write a footnote per training with flags."""
    rows = [(Path(seeds[0]["config"]).stem, seeds[0]["flags"]) for seeds in trainings()]
    notes = [f"[^flags-{slug(f'{x} {words}')}]: With `{words}`." for x, words in rows if words]
    return ["", *notes, ""]


def published(config: str) -> str:
    """Format the published numbers of a config, with footnotes for their sources."""
    numbers = PUBLISHED["numbers"].get(config, {})
    return "<br>".join(f"{x}[^{slug(who)}] ({what})" for who, (x, what) in numbers.items())


def slug(library: str) -> str:
    """Return the name of the footnote about a library's numbers."""
    return re.sub(r"\W+", "-", library.lower()).strip("-")


def sources(configs: Iterable[str] | None = None) -> list[str]:
    """Write a footnote per library about the kind of number that it publishes.

    Args:
        configs: the configs whose libraries are needed; by default all.
    """
    numbers = PUBLISHED["numbers"]
    needed = {who for config in configs or numbers for who in numbers.get(config, ())}
    kinds = {who: kind for who, kind in PUBLISHED["sources"].items() if who in needed}
    return ["", *(f"[^{slug(who)}]: {who}: {kind}." for who, kind in kinds.items()), ""]


def ppo_and_friends() -> Rows:
    """Return a row per task of PPO and Friends, with our last checkpoints if they are measured."""
    of_config = {(seeds[0]["config"], seeds[0]["flags"]): seeds for seeds in trainings()}
    rows = []
    for entry in PUBLISHED["ppo_and_friends"]:
        config, words, least = (entry.get(key, "") for key in ("config", "flags", "at_least"))
        seeds = of_config.get((config, words), [])
        passed = sum(score >= least for score in lasts(seeds)) if least else 0
        row = {
            "task": entry["task"],
            "score": entry["score"],
            "least": f"{least:,}" if least else "",
            "label": label(config, words if seeds else "") if config else "",
            "steps": f"{statistics.mean(x['env_steps'] for x in seeds) / 1e6:.1f} M"
            if seeds
            else "",
            "ours": our_scores(seeds) or entry.get("reason", "not measured"),
            "passed": f"{passed} of {len(seeds)}" if least and seeds else "",
        }
        rows.append(row)
    return rows


def our_scores(seeds: Rows) -> str:
    """Format the returns of last checkpoints; by policy if the agents have several."""
    if not seeds:
        return ""
    start = "return_mean/"
    names = [name for name in seeds[0].get("last_metrics", {}) if name.startswith(start)]
    if not names:
        return mean_std(lasts(seeds))
    return ", ".join(
        f"{name.removeprefix(start)} {mean_std([seed['last_metrics'][name] for seed in seeds])}"
        for name in names
    )


def result_of(config: str) -> list[str]:
    """Give a config's task and return, as in its first comment."""
    path = CONFIGS / config
    comment, _, _ = first_comments().get(path, path.read_text(encoding="utf-8")).partition("\n")
    return ["", f"{comment.removeprefix('# ')}.", ""]


def chosen_sources() -> list[str]:
    """Write the footnotes of the table `chosen`."""
    return sources(PUBLISHED["chosen"])


def chosen() -> Rows:
    """Return the rows of the first page, of several seeds without flags."""
    rows = {row["config"]: row for row in several_seeds() if not row["flags"]}
    lines = [rows[config] for config in PUBLISHED["chosen"]]
    return [row | {"published": row["published"].replace("<br>", ", ")} for row in lines]


def speed() -> Rows:
    """Return the steps per second of this library and of another one, for the first page."""
    rows = []
    for what, entry in PUBLISHED["speed"].items():
        found = {
            row.get("contender", row.get("name")): row
            for row in read(entry["rows"])
            if all(row.get(key) == value for key, value in entry["where"].items())
        }
        first, other = (complete(found[name] | {"sizes": {}}) for name in entry["compare"])
        ratio = first["value"] / other["value"]
        peer = {"what": what, "peer": entry["peer"], "peer_value": other["value"], "ratio": ratio}
        rows.append(first | peer | {"anchor": entry["see"]})
    return rows


def remarks() -> list[str]:
    """List the remarks on configs, with their returns, without flags if possible."""
    lines = {}
    for seeds in trainings():
        if remark := PUBLISHED["remarks"].get(seeds[0]["config"]):
            last, best = statistics.mean(lasts(seeds)), statistics.mean(bests(seeds))
            lines.setdefault(seeds[0]["config"], f"* {remark.format(last=last, best=best)}")
    return ["", *lines.values(), ""]


def first_comments() -> dict[Path, str]:
    """Return the text of each measured config, with its return in the first comment."""
    texts = {}
    for (config,), rows in group(read("learning"), "config").items():
        runs = group(rows, "flags").values()
        seeds = min(runs, key=lambda seeds: seeds[0]["flags"] != "")  # without flags if possible
        path = CONFIGS / config
        if path.is_file():
            first, _, rest = path.read_text(encoding="utf-8").partition("\n")
            untuned = ", not tuned" if config in PUBLISHED["untuned"] else ""
            texts[path] = f"{first.partition(': ')[0]}: {reached(seeds)}{untuned}\n{rest}"
    return texts


def reached(seeds: Rows) -> str:
    """Format "return 2,002 ± 323 over 5 seeds after 8.0 M steps (best checkpoint 2,100 ± 300)"."""
    mean = abs(statistics.mean(lasts(seeds)))
    digits = 0 if mean >= 100 else 1 if mean >= 2 else 2
    count = f"over {len(seeds)} seeds" if len(seeds) > 1 else "of one seed"
    steps = statistics.mean(seed["env_steps"] for seed in seeds) / 1e6
    flags = f", with {seeds[0]['flags']}" if seeds[0]["flags"] else ""
    last, best = mean_std(lasts(seeds), digits), mean_std(bests(seeds), digits)
    return f"return {last} {count} after {steps:.1f} M steps (best checkpoint {best}){flags}"


def highest(config: str) -> tuple[float, str]:
    """Return the highest published number of a config and its library."""
    numbers = PUBLISHED["numbers"][config]
    return max((leading(x), who) for who, (x, _) in numbers.items())


def leading(number: float | str) -> float:
    """Return the number before a ±."""
    return float(str(number).partition(" ")[0])


def suites() -> list[str]:
    """Tabulate the scores of tasks and suites."""
    return markdown(["task", "runs", "interquartile mean"], suite_scores())


def suite_means() -> list[str]:
    """Tabulate the scores of suites."""
    rows = [row for row in suite_scores() if row[0].startswith("**")]
    return markdown(["suite", "runs", "interquartile mean"], rows)


@functools.cache
def suite_scores() -> list[list[Any]]:
    """Return interquartile means of last returns, scaled to random = 0, highest published = 1."""
    cells = []
    for suite, configs in suite_runs().items():
        tasks = {config: [runs] for config, (_, runs) in configs.items()}
        scales = {config: scale for config, (scale, _) in configs.items()}
        everything = [runs for (runs,) in tasks.values()]
        for name, task in (*tasks.items(), (suite, everything)):
            middle, low, high = harness.iqm_interval(task)
            title = scales.get(name, f"**{suite}**, {len(tasks)} tasks")
            cells.append([title, sum(map(len, task)), f"{middle:.2f} ({low:.2f} to {high:.2f})"])
        cells += published_scores(suite, list(tasks))
    return cells


def published_scores(suite: str, configs: list[str]) -> list[list[Any]]:
    """Return the interquartile means of sources that publish all tasks of a suite."""
    numbers = {config: PUBLISHED["numbers"][config] for config in configs}
    shared = [who for who in PUBLISHED["sources"] if all(who in x for x in numbers.values())]
    if all(len(x) == 1 for x in numbers.values()):  # every score would be 1 by definition
        return []
    cells = []
    for who in shared:
        scores = [scaled(config, leading(x[who][0])) for config, x in numbers.items()]
        title = f"**{suite}**, {len(configs)} tasks, means published by {who}"
        cells.append([title, "", f"{harness.iqm(np.array(scores)):.2f}"])
    return cells


def suite_runs() -> dict[str, dict[str, tuple[str, np.ndarray]]]:
    """Return, by suite and config, a description of the scale and the scaled returns of seeds."""
    seeds = {rows[0]["config"]: rows for rows in trainings() if not rows[0]["flags"]}
    result: dict[str, dict[str, tuple[str, np.ndarray]]] = defaultdict(dict)
    for suite, configs in PUBLISHED["suites"].items():
        for config in configs:
            low, high, who = scale_of(config)
            scale = f"{label(config)}: 0 is {low:,.1f}, 1 is {high:,.1f} ({who})"
            result[suite][config] = scale, scaled(config, lasts(seeds[config]))
    return result


def scale_of(config: str) -> tuple[float, float, str]:
    """Return the random return of a task, its highest published one, and the source of that."""
    random = {row["config"]: row["return_mean"] for row in read("random_returns")}
    return random[config], *highest(config)


def scaled(config: str, returns: Any) -> np.ndarray:
    """Return returns of a task on the scale of its suite."""
    low, high, _ = scale_of(config)
    return (np.asarray(returns) - low) / (high - low)


def first_minutes() -> Rows:
    """Return the return of each run at some seconds, interpolated between its evaluations."""
    rows = []
    for row in sorted(read("first_minutes"), key=lambda r: (r["contender"] != "ours", r["seed"])):
        steps, times, returns = zip(*row["curve"], strict=True)
        at = {mark: np.interp(mark, times, returns) for mark in (20, 60, 90, 115)}
        rows.append(row | {"at": at, "speed": (steps[-1] - steps[0]) / (times[-1] - times[0])})
    return rows


def peer_returns() -> Rows:
    """Return rows that compare this library with others. Minutes are those of one device."""
    rows = []
    for config, runs in with_peers().items():
        for library, seeds in runs.items():
            timed = on_equal_hardware(seeds, runs[OURS][0])
            minutes = [row["train_seconds"] / 60 for row in timed]
            rows.append(
                {
                    "config": label(config),
                    "library": library,
                    "seeds": len(seeds),
                    "steps": statistics.mean(row["env_steps"] for row in seeds) / 1e6,
                    "last": mean_std(lasts(seeds)),
                    "minutes": f"{statistics.median(minutes):.1f}" if timed else "",
                    "timed": len(timed),
                    "cores": (timed or seeds)[0]["cores"],
                    "device": (timed or seeds)[0]["device"],
                }
            )
    return rows


def with_peers() -> dict[str, dict[str, Rows]]:
    """Return, by config and library, the rows of this library and of those in PEERS.

    Brax's PPO trains for a time instead of a number of steps. Its rows are skipped unless they have
    the device and the number of cores of a row of this library, which is then the first.
    """
    ours = {seeds[0]["config"]: seeds for seeds in trainings() if not seeds[0]["flags"]}
    result: dict[str, dict[str, Rows]] = {}
    for (config, name), seeds in group(read("peer_returns"), "config", "library").items():
        mine, shown = ours.get(config, []), seeds
        if mine and name.startswith("brax"):
            mine = sorted(mine, key=lambda row: not on_equal_hardware(seeds, row))
            shown = on_equal_hardware(seeds, mine[0])
        if mine and shown:
            result.setdefault(config, {OURS: mine})[PEERS[name]] = shown
    return result


def on_equal_hardware(rows: Rows, other: Row) -> Rows:
    """Return the rows with the same device and number of cores as another row."""
    return [row for row in rows if all(row[key] == other[key] for key in ("device", "cores"))]


def host() -> Rows:
    """Return the rows of host simulators with shared sizes, varied sizes and packages."""
    rows = read("host")
    varied = ("env", "num_envs", "rollout_length", "num_minibatches", "num_epochs")
    for alike in group(rows, "task", "device", "cores").values():
        used = {(k, v) for r in alike for k, v in r["versions"].items() if k in HOST_PACKAGES}
        for row in alike:
            sizes = row["sizes"]
            row["shared"] = pairs({k: v for k, v in sizes.items() if k not in varied})
            row["packages"] = ", ".join(f"{name} {version}" for name, version in sorted(used))
            row["sizes_varied"] = f"{sizes['num_envs']} x {sizes['rollout_length']}"
            if row["kind"] == "training":
                row["sizes_varied"] += f", {sizes['num_minibatches']} minibatches"
                row["sizes_varied"] += f", {sizes['num_epochs']} epochs"
            limit = simulator_speed(alike, sizes)
            row["of_simulator"] = f"{row['steps_per_second'] / limit:.2f}" if limit else ""
    return rows


def simulator_speed(rows: Rows, sizes: Row) -> float | None:
    """Return the highest steps/s of the same environments alone; None if it was not measured."""
    alike = [r for r in rows if all(r["sizes"][k] == sizes[k] for k in ("env", "num_envs"))]
    return max((r["steps_per_second"] for r in alike if r["kind"] == "simulator"), default=None)


def anatomy() -> list[str]:
    """Tabulate microseconds per environment step, a column per piece."""
    rows = read("anatomy")
    names = [name for name, _ in max((row["pieces"] for row in rows), key=len)]
    cells = []
    for row in rows:
        sizes, pieces = row["sizes"], dict(row["pieces"])
        times = [f"{pieces[name]:.2f}" if name in pieces else "" for name in names]
        shape = f"{sizes['num_envs']} x {sizes['rollout_length']}"
        total, device = f"{row['microseconds']:.2f}", f"{row['cores']} x {row['device']}"
        cells.append([sizes["env"], shape, *times, total, device])
    return markdown(["environment", "environments x steps", *names, "total", "device"], cells)


def ablations() -> list[str]:
    """Tabulate the gain of each option, the largest first; finals before screenings."""
    rows = read("ablations")
    lines: list[str] = []
    measured: set[str] = set()
    for stage, title in (
        ("finals", "at equal CPU seconds"),
        ("screen", "at equal steps, compared with 10 seeds without the option"),
    ):
        alike = [row for row in rows if row["stage"] == stage]
        results = {
            row["option"]: ablation_benchmark.compare(rows, stage, row["option"])
            for row in alike
            if row["option"] != ablation_benchmark.DEFAULT
        }
        ordered = sorted((result, option) for option, result in results.items() if result)
        measured |= {option for _, option in ordered}
        if ordered:
            names = [label(task) for task in ablation_benchmark.TASKS]
            lines += ["", f"**{len(ablation_benchmark.STAGES[stage])} seeds, {title}**:"]
            costs = ["relative CPU time per step"] if stage == "finals" else []
            cells = [option_cells(alike, *pair) for pair in reversed(ordered)]
            lines += markdown(["option", *names, *costs, "gain", "result"], cells)
    missing = [f"`{option}`" for option in ablation_benchmark.OPTIONS if option not in measured]
    picture = ["![Gains of options](pictures/ablations.png)"] if lines else []
    text = (
        [f"Not in the tables, because runs are missing: {', '.join(missing)}."] if missing else []
    )
    return ["", *lines, *picture, "", *text, ""]


def option_cells(rows: Rows, result: tuple[float, float, float], option: str) -> list[str]:
    """Format a row of the table of options, from the rows of one stage."""
    gain, low, high = (100 * x for x in result)
    verdict = "better" if round(low) > 0 else "worse" if round(high) < 0 else "no difference found"
    scores = ablation_benchmark.scores(rows, rows[0]["stage"], option)
    used = scores.keys() & set(ablation_benchmark.OPTIONS.get(option) or scores)
    tasks = [
        f"{scores[task][0].mean():.2f}" if task in used else "" for task in ablation_benchmark.TASKS
    ]
    costs = [row["cost"] for row in rows if row["option"] == option]
    cost = [f"{statistics.mean(costs):.2f}"] if rows[0]["stage"] == "finals" else []
    return [f"`{option}`", *tasks, *cost, f"{gain:+z.0f} % ({low:+z.0f} to {high:+z.0f})", verdict]


def studies() -> list[str]:
    """Tabulate the flags and returns of each study, with its picture."""
    lines: list[str] = []
    for (study,), rows in group(read("studies"), "study").items():
        config, steps = rows[0]["config"], rows[0]["steps"][-1]
        flags = [split_flags(row["flags"]) for row in rows]
        common = [flag for flag in flags[0] if all(flag in other for other in flags)]
        shared = f" `{' '.join(common)}`" if common else ""
        text = f"**{study[0].upper()}{study[1:]}**, `{config}`{shared}, {steps / 1e3:,.0f} k steps"
        teacher = rows[0].get("teacher")
        teacher_text = f"; flags of the teacher: `{teacher}`" if teacher else ""
        lines += ["", f"{text}, {rows[0]['seeds']} seeds{teacher_text}:"]
        largest = PUBLISHED["largest"].get(config, math.inf)
        if min(statistics.mean(row["last"]) for row in rows) > 0.97 * largest:
            text = "All variants come within 3 % of the largest return. Compare their curves."
            lines += ["", f"*{text}*"]
        cells = []
        for row, row_flags in zip(rows, flags, strict=True):
            varied = " ".join(flag for flag in row_flags if flag not in common)
            digits = 2 if abs(statistics.mean(row["last"])) < 10 else 0
            result = mean_std(row["last"], digits)
            cells.append([row["variant"], f"`{varied}`" if varied else "", result])
        lines += markdown(["variant", "flags", "return"], cells)
        name = re.sub(r"\W", "_", study)
        lines += [f"![Returns over steps: {study}](pictures/studies/{name}.png)"]
    return [*lines, ""]


def split_flags(text: str) -> list[str]:
    """Split a command line into flags, each with its values."""
    return [flag.strip() for flag in re.split(r"(?:^|\s+)(?=--)", text) if flag.strip()]


def gpu_programs() -> Rows:
    """Return the rows of programs with predicted speeds and text for the sums over GPUs."""
    rows = read("gpu_programs")
    for row in rows:
        steps, train = row["steps_per_update"], row["train"]
        row["low"], row["high"] = (steps / train["kernels"] / us for us in (3.0, 1.5))
        row["mib"], row["sums"] = train["bytes"] / 2**20, train["collectives"] or "-"
    return rows


def gpu() -> Rows:
    """Return the rows of trainings that were timed on a GPU, with empty text for missing fields."""
    rows = [row for row in read("gpu") if row.get("rounds")]
    for row in rows:
        row["about"] = row.pop("sizes", "")
        row["launches"] = f"{row['launches']:,}" if row.get("launches") else ""
        row["us"] = f"{row['launch_us']:.2f}" if row.get("launch_us") else ""
    return rows


def gpu_card() -> Rows:
    """Return the rows of a GPU's memory, arithmetic and launches."""
    rows = [row for row in read("gpu") if row["item"] == "machine" and row["name"]]
    for row in rows:
        facts = row.get("facts", {"us per kernel": f"{row.get('launch_us', 0):.2f}"})
        row["result"] = facts.get("kind") or ", ".join(f"{x} {unit}" for unit, x in facts.items())
    return rows


def gpu_same() -> Rows:
    """Return the rows that compare results of a GPU with a CPU's, or of two runs."""
    items = "one update", "one run"
    rows = [row for row in read("gpu") if row["item"] in items and row["name"]]
    for row in rows:
        row["result"] = pairs(row.get("facts", {})) or ("it ran" if row["ok"] else row["why"])
    return rows


def gpu_learning() -> Rows:
    """Return the rows of whole runs on a GPU."""
    rows = [row for row in read("gpu") if row.get("curve")]
    for row in rows:
        reached = row["reached_seconds"]
        row["reached"] = "not reached" if reached is None else f"{reached:.1f}"
    return rows


def versions() -> list[str]:
    """List the versions of the packages of the last training."""
    return ["", f"Versions: {pairs(read('learning')[-1]['versions'])}.", ""]


TEXTS = {
    x.__name__: x
    for x in (
        versions,
        sources,
        chosen_sources,
        flags,
        remarks,
        suites,
        suite_means,
        anatomy,
        ablations,
        studies,
    )
}
TEXTS |= {x: functools.partial(result_of, f"{x}.yaml") for x in ("hopper_v5", "go1_joystick")}
"""Name of a block -> function that makes its lines."""
PREPARED = {
    x.__name__: x
    for x in (
        several_seeds,
        one_seed,
        chosen,
        speed,
        first_minutes,
        peer_returns,
        host,
        ppo_and_friends,
        gpu_programs,
        gpu,
        gpu_card,
        gpu_same,
        gpu_learning,
    )
}
"""Name in docs/tables.yaml -> function that prepares the rows of a table."""


def unbroken(line: str) -> str:
    """Return a row of a table in which "1.2 ± 3.4", "5 M" and "2 x CPU" are not broken."""
    return re.sub(r"(?<=\d) (?=[±Mx])|(?<=±) |(?<=\d x) ", "\u00a0", line)


def filled(path: Path) -> str:
    """Return the text of a page with new blocks."""
    folder = "docs/" if path.parent == ROOT else ""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        lines = TEXTS[name]() if name in TEXTS else tables(name)
        lines = [unbroken(line) if line.startswith("|") else line for line in lines]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines).strip())
        text = text.replace("](results", f"]({folder}results")
        return f"<!-- {name} -->\n\n{text}\n\n<!-- end -->"

    page = path.read_text(encoding="utf-8")
    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, page, flags=re.DOTALL)


def main() -> int:
    """Write the pages and comments, or compare them; return the exit code."""
    texts = {path: filled(path) for path in PAGES} | first_comments()
    old = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{x.name} is out of date: run docs/make_results.py\n" for x in old)
        return 1 if old else 0
    for path in old:
        path.write_text(texts[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
