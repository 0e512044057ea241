"""The place of a process among those that train together: from mpirun, srun or flags."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace

from purejaxppo.parallel.processes import ALONE, Place

FIRST_PORT, NUM_PORTS = 61440, 4096
"""Ports for processes that a launcher started, chosen by the number of its job."""


def launched(environ: Mapping[str, str]) -> Place:
    """The place that mpirun (Open MPI) or srun (SLURM) gave this process, ALONE if none."""
    if int(environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        return Place(
            index=int(environ["OMPI_COMM_WORLD_RANK"]),
            count=int(environ["OMPI_COMM_WORLD_SIZE"]),
            coordinator=_open_mpi_address(environ),
            by_launcher=True,
        )
    # A batch script has SLURM_NTASKS too; only what srun starts is in a step with a list of nodes.
    if "SLURM_STEP_NODELIST" in environ and int(environ.get("SLURM_NTASKS", 1)) > 1:
        job, step = (int(environ.get(f"SLURM_{name}_ID", 0)) for name in ("JOB", "STEP"))
        return Place(
            index=int(environ["SLURM_PROCID"]),
            count=int(environ["SLURM_NTASKS"]),
            coordinator=f"{first_node(environ['SLURM_STEP_NODELIST'])}:{_port(job + 31 * step)}",
            by_launcher=True,
        )
    return ALONE


def _open_mpi_address(environ: Mapping[str, str]) -> str:
    """The address of mpirun's machine (from Open MPI 4), or of this one if all run on it."""
    port = _port(zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode()))
    told = re.search(r"tcp://([^,:]+)|tcp6://\[([^],]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environ["OMPI_COMM_WORLD_SIZE"]:
        return f"127.0.0.1:{port}"
    return f"{told[1] or told[2]}:{port}" if told else ""


def _port(job: int) -> int:
    return FIRST_PORT + job % NUM_PORTS


def first_node(nodes: str) -> str:
    """The first of SLURM's list of nodes: 'gpu[007-9,12],b3' -> 'gpu007'."""
    name, bracket, rest = re.split(r"([\[,]|$)", nodes, maxsplit=1)
    return name + re.split(r"[-,\]]", rest)[0] if bracket == "[" else name


def place_of(given: Place, coordinator: str, num_processes: int, process_id: int) -> Place:
    """Combines the place that a launcher gave with the flags of the command line.

    Args:
        given: from `launched`.
        coordinator: --coordinator, empty if not given.
        num_processes: --num_processes, 0 if not given; 1 trains alone whatever the launcher says.
        process_id: --process_id, -1 if not given.

    Raises:
        ValueError: flags that do not fit each other or the launcher.
    """
    if num_processes < 0 or process_id < -1:
        raise ValueError("--num_processes is at least 1, and --process_id at least 0")
    if num_processes and process_id >= num_processes:
        raise ValueError(
            f"--process_id {process_id}: {num_processes} processes are numbered from 0 to "
            f"{num_processes - 1}"
        )
    if num_processes == 1:
        return ALONE
    if coordinator:
        address(coordinator)
        given = replace(given, coordinator=coordinator)
    if given.by_launcher:
        _check_launched(given, num_processes, process_id)
        return given
    return _started_by_hand(coordinator, num_processes, process_id)


def _check_launched(given: Place, num_processes: int, process_id: int) -> None:
    """Refuses flags that contradict the launcher, and a place without an address."""
    if num_processes not in (0, given.count) or process_id not in (-1, given.index):
        raise ValueError(
            f"--num_processes and --process_id are for processes started by hand; the "
            f"launcher says that this is process {given.index} of {given.count}"
        )
    if not given.coordinator:
        raise ValueError(
            "mpirun does not say where process 0 is: add --coordinator HOST:PORT, with the "
            "host of process 0"
        )


def _started_by_hand(coordinator: str, num_processes: int, process_id: int) -> Place:
    """The place that the three flags give together, ALONE if none was given."""
    missing = [
        flag
        for flag, value in (
            ("--coordinator HOST:PORT", coordinator),
            ("--num_processes", num_processes),
            ("--process_id", process_id + 1),
        )
        if not value
    ]
    if len(missing) == 3:
        return ALONE
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} missing: processes that are started by hand need "
            f"--coordinator, --num_processes and --process_id"
        )
    return Place(process_id, num_processes, coordinator)


def address(coordinator: str) -> tuple[str, int]:
    """'host:port' as a pair.

    Raises:
        ValueError: it is something else.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator {coordinator} is not of the form HOST:PORT, node1:12345")
    return host.strip("[]"), int(port)
