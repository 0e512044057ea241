"""What a result was measured on, and where results are kept."""

import json
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


PACKAGES = (
    *("jax", "jaxlib", "flax", "optax"),
    *("brax", "gymnax", "playground", "mujoco-mjx", "mujoco", "envpool", "gymnasium"),
    *("craftax", "jaxmarl", "jumanji", "pgx", "xminigrid"),
    *("torch", "stable_baselines3", "sbx-rl"),
)


def describe() -> dict[str, Any]:
    """Device and versions, as a result row keeps them; starts JAX."""
    import jax

    from purejaxppo.parallel.cores import cpu_cores

    device = jax.devices()[0]
    return {
        "device": _cpu_name() if device.platform == "cpu" else device.device_kind,
        "cores": len(jax.devices()) if device.platform != "cpu" else cpu_cores(),
        **software(),
    }


def software() -> dict[str, Any]:
    """The version of Python, and of what is installed of the packages that matter."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "versions": versions}


def peak() -> dict[str, Any]:
    """Memory of this process at its largest so far, and of its accelerator, in MB."""
    import jax

    unit = 2**20 if sys.platform == "darwin" else 2**10
    found = {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)}
    held = [stats for stats in (d.memory_stats() for d in jax.local_devices()) if stats]
    if held:
        found["device_peak_mb"] = round(sum(s["peak_bytes_in_use"] for s in held) / 2**20)
    return found


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replaces a results file, one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file; [] if there is none."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def replace_rows(path: Path, rows: list[dict[str, Any]], *keys: str) -> None:
    """Adds rows to a results file, in place of those that agree with one of them in `keys`."""
    done = {tuple(row[key] for key in keys) for row in rows}
    kept = [row for row in read_rows(path) if tuple(row[key] for key in keys) not in done]
    write_rows(path, [*kept, *rows])
