"""The place of a process among those that train together, from mpirun, srun or flags.

JAX's own detection of launchers is not used: it does not find Open MPI 5, and takes one device for
each process, also where a process is alone on a node with several GPUs.
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
"""Ports for processes that a launcher started, chosen by the number of its job, as JAX does."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """The place of a process among those that train together.

    Processes on one machine are local to each other; they share its cores and GPUs.
    """

    index: int = 0
    count: int = 1
    coordinator: str = ""
    """host:port of process 0; empty: the launcher does not give it."""
    local_index: int = 0
    local_count: int = 1
    cores: int = 0
    """CPU devices of this process; 0: every core that it may run on."""
    gpus: tuple[int, ...] = ()
    """Indices of the visible GPUs that this process takes; empty: all."""


ALONE = Place()


def place_of(
    environ: Mapping[str, str],
    coordinator: str,
    num_processes: int,
    process_id: int,
    devices: int = 0,
) -> Place:
    """Return the place that a launcher's variables and the flags of the command line give.

    Args:
        environ: environment variables.
        coordinator: --coordinator, empty if not given.
        num_processes: --num_processes, 0 if not given; 1 trains alone under any launcher.
        process_id: --process_id, -1 if not given.
        devices: --devices of each process, 0 if not given.

    Raises:
        ValueError: the flags contradict each other or the launcher, or the address is missing.
    """
    if num_processes and process_id >= num_processes:
        raise ValueError(
            f"--process_id {process_id}: {num_processes} processes are numbered from 0 to "
            f"{num_processes - 1}"
        )
    if num_processes == 1:
        return ALONE
    if coordinator:
        address(coordinator)
    place = launched(environ, devices)
    if place == ALONE:
        return _started_by_hand(coordinator, num_processes, process_id, devices)
    if num_processes not in (0, place.count) or process_id not in (-1, place.index):
        raise ValueError(
            f"--num_processes and --process_id are for processes started by hand. The launcher "
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
    """Return the place that mpirun (Open MPI) or srun (SLURM) gave this process, else ALONE.

    Args:
        environ: environment variables.
        devices: --devices of each process, 0 if not given.

    Raises:
        ValueError: a variable of the launcher is missing or not a number.
    """
    if _number(environ, "OMPI_COMM_WORLD_SIZE", 1) > 1:
        return _by_open_mpi(environ, devices)
    # Batch scripts and interactive shells have SLURM_NTASKS of the job, too. Processes of srun are
    # in a step with so many tasks.
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1))
    if "SLURM_STEP_NODELIST" in environ and tasks > 1:
        return _by_slurm(environ, tasks, devices)
    return ALONE


def _number(environ: Mapping[str, str], name: str, missing: int | None = None) -> int:
    """Return a variable as a number, or `missing` where it is not set.

    Raises:
        ValueError: it is not a number, or is not set and `missing` is None.
    """
    text = environ.get(name)
    if text is None and missing is not None:
        return missing
    if text is None or not text.isdecimal():
        raise ValueError(
            f"{name} = {text or 'empty'}: mpirun or srun has to set it to a number. Use "
            f"--num_processes 1 to train alone."
        )
    return int(text)


def _by_open_mpi(environ: Mapping[str, str], devices: int) -> Place:
    """Return the place of a process of mpirun; Open MPI 5 gives no address of another machine."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    index, count, local_index, local_count = (
        _number(environ, f"OMPI_COMM_WORLD_{name}") for name in names
    )
    port = _port(zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode()))
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    coordinator = ""
    if local_count == count:
        coordinator = f"{LOOPBACK}:{port}"
    elif found := re.search(r"tcp://([^,:]+)|tcp6://\[([^],]+)", uri):
        coordinator = f"{found[1] or f'[{found[2]}]'}:{port}"
    place = Place(index, count, coordinator, local_index, local_count)
    return _with_share(place, environ, _machine_cores(environ), devices)


def _by_slurm(environ: Mapping[str, str], tasks: int, devices: int) -> Place:
    """Return the place of a process of srun, of so many tasks."""
    job, step, node = (_number(environ, f"SLURM_{x}", 0) for x in ("JOB_ID", "STEP_ID", "NODEID"))
    nodes = environ["SLURM_STEP_NODELIST"]
    listed = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts = task_counts(listed)
    if node >= len(counts):
        raise ValueError(
            f"SLURM_STEP_TASKS_PER_NODE = {listed or 'empty'}: srun has to set it to the tasks of "
            f"node {node}. Use --num_processes 1 to train alone."
        )
    host = LOOPBACK if len(counts) == 1 else first_node(nodes)
    place = Place(
        index=_number(environ, "SLURM_PROCID"),
        count=tasks,
        coordinator=f"{host}:{_port(job + 31 * step)}",
        local_index=_number(environ, "SLURM_LOCALID"),
        local_count=counts[node],
    )
    return _with_share(place, environ, _machine_cores(environ), devices)


def _machine_cores(environ: Mapping[str, str]) -> int:
    """Return the cores of this machine, or those of it that a SLURM job has."""
    return _number(environ, "SLURM_CPUS_ON_NODE", os.cpu_count() or 1)


def _with_share(
    place: Place, environ: Mapping[str, str], machine_cores: int, devices: int
) -> Place:
    """Add a process's share of its machine, of which a launcher may have bound it to a part."""
    visible, own = environ.get("CUDA_VISIBLE_DEVICES"), max(devices, 1)
    given = "SLURM_GPUS_PER_TASK" in environ or (
        visible is not None and len(visible.split(",")) < place.local_count * own
    )
    gpus = tuple(range(place.local_index * own, (place.local_index + 1) * own))
    return replace(
        place,
        cores=min(cpu_cores(), max(1, machine_cores // place.local_count)),
        gpus=() if given or place.local_count == 1 else gpus,
    )


def _port(job: int) -> int:
    return FIRST_PORT + job % NUM_PORTS


def first_node(nodes: str) -> str:
    """Return the first of SLURM's list of nodes: 'gpu[007-9,12],b3' -> 'gpu007'."""
    name, bracket, rest = re.split(r"([\[,]|$)", nodes, maxsplit=1)
    return name + re.split(r"[-,\]]", rest)[0] if bracket == "[" else name


def task_counts(text: str) -> list[int]:
    """Return the number of tasks of each node from SLURM's text: '4(x2),1' -> [4, 4, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, nodes in parts for _ in range(int(nodes or 1))]


def _started_by_hand(coordinator: str, num_processes: int, process_id: int, devices: int) -> Place:
    """Return the place that the three flags give together, ALONE if none was given."""
    given = [coordinator != "", num_processes > 0, process_id >= 0]
    if not any(given):
        return ALONE
    if not all(given):
        raise ValueError(
            "Processes that are started by hand need --coordinator HOST:PORT, --num_processes and "
            "--process_id. Add the missing ones."
        )
    place = Place(process_id, num_processes, coordinator)
    if is_loopback(coordinator):  # all are on this machine
        place = replace(place, local_index=process_id, local_count=num_processes)
        return _with_share(place, os.environ, cpu_cores(), devices)
    return place


def address(coordinator: str) -> tuple[str, int]:
    """Split 'host:port'.

    Raises:
        ValueError: it has another form.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator {coordinator} is not of the form HOST:PORT, node1:12345")
    return host.strip("[]"), int(port)


def is_loopback(coordinator: str) -> bool:
    """Return whether only processes of the same machine reach an address."""
    return address(coordinator)[0] in ("localhost", LOOPBACK, "::1")


def start(place: Place, seconds: float) -> None:
    """Start JAX's distributed runtime; call it before the first use of JAX's devices.

    Args:
        place: of this process.
        seconds: time to wait for the others.

    Raises:
        ValueError: a process is missing, or the port of process 0 is in use.
    """
    local = is_loopback(place.coordinator)
    if place.index == 0:
        _check_port(LOOPBACK if local else "", address(place.coordinator)[1])
    _keep_stdout_to_ourselves()
    # JAX's service would replace this process's handler of SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    # JAX ends the process when its own time is over. In a thread, Ctrl-C ends the waiting, too.
    joined = ThreadPoolExecutor(1).submit(
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
        joined.result(seconds)
    except TimeoutError:
        raise ValueError(
            f"process {place.index} waited {seconds:g} s at {place.coordinator}, but not all "
            f"{place.count} processes came. Start all of them, with one --coordinator that they "
            f"reach."
        ) from None


def _check_port(host: str, port: int) -> None:
    """Raise ValueError if a port is in use; JAX's service would crash."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ValueError(
            f"port {port} of process 0 cannot be used ({os.strerror(error.errno or 0)}). Choose "
            f"another one with --coordinator HOST:PORT."
        ) from error


def _keep_stdout_to_ourselves() -> None:
    """Reserve stdout for Python: the first collectives of each process print to it from C++."""
    sys.stdout.flush()
    ours = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdout = os.fdopen(ours, "w", encoding=encoding, errors=errors, buffering=1)
