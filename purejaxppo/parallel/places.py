"""Rank, devices and coordinator of a process in multi-process training, from mpirun, srun or flags.

JAX's detection of launchers is not used. It does not support Open MPI 5, and gives each process one
device even if it is the only one on a node with several GPUs.
"""

import os
import re
import socket
import sys
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax

from purejaxppo.parallel.cores import cpu_cores

FIRST_PORT, NUM_PORTS = 61440, 4096
"""Range of ports for launched processes. The job's number selects one, as in JAX."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """Rank and resources of a process in multi-process training.

    Processes on the same host are local to each other and share its cores and GPUs.
    """

    index: int = 0
    count: int = 1
    coordinator: str = ""
    """host:port of process 0; empty if the launcher does not provide it."""
    local_index: int = 0
    local_count: int = 1
    cores: int = 0
    """Number of CPU devices of this process; 0: all cores that it may run on."""
    gpus: tuple[int, ...] = ()
    """Indices of the visible GPUs that this process uses; empty: all."""


ALONE = Place()
"""Place of a process that trains without others (single-process training)."""


def place_of(
    environ: Mapping[str, str],
    coordinator: str,
    num_processes: int,
    process_id: int,
    devices: int = 0,
) -> Place:
    """Return rank and coordinator of this process, from a launcher's variables or from flags.

    Args:
        environ: environment variables.
        coordinator: --coordinator, empty if not given.
        num_processes: --num_processes, 0 if not given. 1 ignores the launcher: this process trains
            a run without others.
        process_id: --process_id, -1 if not given.
        devices: --devices of each process, 0 if not given.

    Raises:
        ValueError: the flags contradict each other or the launcher, or the address is missing.
    """
    if num_processes and process_id >= num_processes:
        raise ValueError(
            f"--process_id = {process_id}: must be from 0 to {num_processes - 1} for "
            f"{num_processes} processes."
        )
    if num_processes == 1:
        return ALONE
    if coordinator:
        address(coordinator)
    place = launched(environ, devices)
    if place == ALONE:
        return _started_manually(coordinator, num_processes, process_id, devices)
    if num_processes not in (0, place.count) or process_id not in (-1, place.index):
        raise ValueError(
            f"--num_processes and --process_id are for processes started manually. The launcher "
            f"started this one as process {place.index} of {place.count}."
        )
    place = replace(place, coordinator=coordinator or place.coordinator)
    if not place.coordinator:
        raise ValueError(
            "mpirun does not give the address of process 0. Add --coordinator HOST:PORT, with the "
            "host of process 0."
        )
    return place


def launched(environ: Mapping[str, str], devices: int = 0) -> Place:
    """Return the rank assigned by mpirun (Open MPI) or srun (SLURM), else ALONE.

    Args:
        environ: environment variables.
        devices: --devices of each process, 0 if not given.

    Raises:
        ValueError: a variable of the launcher is missing or not a number.
    """
    if _number(environ, "OMPI_COMM_WORLD_SIZE", 1) > 1:
        return _by_open_mpi(environ, devices)
    # Batch scripts and interactive shells also have SLURM_NTASKS. Only srun sets the step's number.
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1))
    if "SLURM_STEP_NODELIST" in environ and tasks > 1:
        return _by_slurm(environ, tasks, devices)
    return ALONE


def _number(environ: Mapping[str, str], name: str, missing: int | None = None) -> int:
    """Return a variable as a number, or `missing` if it is not set.

    Raises:
        ValueError: the variable is not a number, or is not set and has no default.
    """
    text = environ.get(name)
    if text is None and missing is not None:
        return missing
    if text is None or not text.isdecimal():
        problem = f"{name} = {text}:" if text else f"{name} is not set:"
        raise ValueError(
            f"{problem} mpirun or srun must set it to a number. Use --num_processes 1 to train in "
            f"one process."
        )
    return int(text)


def _by_open_mpi(environ: Mapping[str, str], devices: int) -> Place:
    """Return the rank of a process of mpirun.

    Open MPI 5 does not give processes the address of another host, so --coordinator is necessary.
    """
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    index, count, local_index, local_count = (
        _number(environ, f"OMPI_COMM_WORLD_{name}") for name in names
    )
    port = _port(zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode()))
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    coordinator = ""
    if local_count == count:
        coordinator = f"{LOOPBACK}:{port}"
    elif match := re.search(r"tcp://([^,:]+)|tcp6://\[([^],]+)", uri):
        coordinator = f"{match[1] or f'[{match[2]}]'}:{port}"
    place = Place(index, count, coordinator, local_index, local_count)
    return _with_share(place, environ, _host_cores(environ), devices)


def _by_slurm(environ: Mapping[str, str], tasks: int, devices: int) -> Place:
    """Return the rank of a process of srun with `tasks` processes."""
    job, step, node = (_number(environ, f"SLURM_{x}", 0) for x in ("JOB_ID", "STEP_ID", "NODEID"))
    nodes = environ["SLURM_STEP_NODELIST"]
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts = task_counts(per_node)
    if node >= len(counts):
        name = "SLURM_STEP_TASKS_PER_NODE"
        problem = f"{name} = {per_node}:" if per_node else f"{name} is not set:"
        raise ValueError(
            f"{problem} srun must set the number of tasks of node {node}. Use --num_processes 1 to "
            f"train in one process."
        )
    host = LOOPBACK if len(counts) == 1 else first_node(nodes)
    place = Place(
        index=_number(environ, "SLURM_PROCID"),
        count=tasks,
        coordinator=f"{host}:{_port(job + 31 * step)}",
        local_index=_number(environ, "SLURM_LOCALID"),
        local_count=counts[node],
    )
    return _with_share(place, environ, _host_cores(environ), devices)


def _host_cores(environ: Mapping[str, str]) -> int:
    """Return the number of cores of this host, or of this SLURM job on it."""
    return _number(environ, "SLURM_CPUS_ON_NODE", os.cpu_count() or 1)


def _with_share(place: Place, environ: Mapping[str, str], host_cores: int, devices: int) -> Place:
    """Add a process's share of the host's cores and GPUs, unless the launcher has bound it."""
    visible, per_process = environ.get("CUDA_VISIBLE_DEVICES"), max(devices, 1)
    is_bound = "SLURM_GPUS_PER_TASK" in environ or (
        visible is not None and len(visible.split(",")) < place.local_count * per_process
    )
    first = place.local_index * per_process
    gpus = tuple(range(first, first + per_process))
    return replace(
        place,
        cores=min(cpu_cores(), max(1, host_cores // place.local_count)),
        gpus=() if is_bound or place.local_count == 1 else gpus,
    )


def _port(job: int) -> int:
    return FIRST_PORT + job % NUM_PORTS


def first_node(nodes: str) -> str:
    """Return the first node of SLURM's list: 'gpu[007-9,12],b3' -> 'gpu007'."""
    name, bracket, remainder = re.split(r"([\[,]|$)", nodes, maxsplit=1)
    return name + re.split(r"[-,\]]", remainder)[0] if bracket == "[" else name


def task_counts(text: str) -> list[int]:
    """Return the number of tasks of each node: '4(x2),1' -> [4, 4, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, nodes in parts for _ in range(int(nodes or 1))]


def _started_manually(coordinator: str, num_processes: int, process_id: int, devices: int) -> Place:
    """Return rank, number of processes and coordinator from the flags; ALONE without flags."""
    is_set = [coordinator != "", num_processes > 0, process_id >= 0]
    if not any(is_set):
        return ALONE
    if not all(is_set):
        raise ValueError(
            "processes started manually require --coordinator HOST:PORT, --num_processes and "
            "--process_id. Add the missing flags."
        )
    place = Place(process_id, num_processes, coordinator)
    if is_loopback(coordinator):  # all processes are on this host
        place = replace(place, local_index=process_id, local_count=num_processes)
        return _with_share(place, os.environ, cpu_cores(), devices)
    return place


def address(coordinator: str) -> tuple[str, int]:
    """Split 'host:port'.

    Raises:
        ValueError: invalid address.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator = {coordinator}: must be HOST:PORT, such as node1:12345.")
    return host.strip("[]"), int(port)


def is_loopback(coordinator: str) -> bool:
    """Return True for an address that is reachable only from the same host."""
    return address(coordinator)[0] in ("localhost", LOOPBACK, "::1")


def start(place: Place, seconds: float) -> None:
    """Start JAX's distributed runtime. Call this before the first use of JAX's devices.

    Args:
        place: rank, number of processes and coordinator of this process.
        seconds: time to wait for the other processes.

    Raises:
        ValueError: a process is missing, or the port of process 0 is in use.
    """
    local = is_loopback(place.coordinator)
    if place.index == 0:
        _check_port(LOOPBACK if local else "", address(place.coordinator)[1])
    _reserve_stdout()
    # JAX's service would replace this process's handler of SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    # JAX would exit the process on a timeout. A thread makes our timeout and Ctrl-C work.
    connection = ThreadPoolExecutor(1).submit(
        jax.distributed.initialize,
        place.coordinator,
        place.count,
        place.index,
        local_device_ids=place.gpus,
        cluster_detection_method="deactivate",
        initialization_timeout=int(seconds) + 3600,
        coordinator_bind_address=place.coordinator if local else None,
    )
    try:
        connection.result(seconds)
    except TimeoutError:
        raise ValueError(
            f"process {place.index}: not all {place.count} processes connected to "
            f"{place.coordinator} within {seconds:g} s. Start all of them with the same "
            f"--coordinator, which they must be able to reach."
        ) from None


def _check_port(host: str, port: int) -> None:
    """Raise ValueError if a port is in use, which would crash JAX's service."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ValueError(
            f"port {port} of process 0 cannot be used ({os.strerror(error.errno or 0)}). Choose "
            f"another port with --coordinator HOST:PORT."
        ) from error


def _reserve_stdout() -> None:
    """Reserve stdout for Python, because the first collectives print to it from C++."""
    sys.stdout.flush()
    stdout = os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdout = os.fdopen(stdout, "w", encoding=encoding, errors=errors, buffering=1)
