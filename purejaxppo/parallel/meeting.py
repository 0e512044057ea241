"""Connection of the processes that train together, before JAX starts.

All connect to process 0 (`start`), so that an error names one that is missing or was given another
command. JAX's own runtime does the rest: afterwards `jax.devices()` are those of all processes, and
one program runs on all of them.
"""

import contextlib
import ipaddress
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax

from purejaxppo.parallel.places import address
from purejaxppo.parallel.processes import DistributedError, Place

T = TypeVar("T")
HEARTBEAT_SECONDS = 100
"""JAX ends all processes if one sends no heartbeat for so long; an exit is noticed at once."""
Member = dict[str, Any]
"""Data of a process for the others: host, cores, gpus, count, trouble, work."""


def start(
    given: Place,
    find: Callable[[Place], Place],
    prepare: Callable[[], T],
    *,
    seconds: float,
) -> tuple[Place, T]:
    """Connects to the other processes, and starts JAX's runtime; call it before any use of JAX.

    Args:
        given: from `launched`.
        find: the launcher's place -> this process's.
        prepare: called by each process first; its result must be the same for all.
        seconds: to wait for the others.

    Returns:
        The place with its share of cores, and what `prepare` returned.

    Raises:
        ValueError: `find` or `prepare` does, or the others were not met.
    """
    place, trouble, prepared = given, "", None
    try:
        place = find(given)
        prepared = prepare()
    except ValueError as error:
        # A process started by hand may be the only one so far, and would wait in vain.
        if not (place.by_launcher and place.coordinator):
            raise
        trouble = str(error)
    if place.count > 1:
        members = meet(place, trouble, repr(prepared), seconds)
        _keep_stdout_to_ourselves()
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            local_device_ids=own_gpus(members, place.index),
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=_bind_address(place) if place.index == 0 else None,
        )
        place = replace(place, cores=share_of_cores(members))
    return place, prepared  # type: ignore[return-value]


def _keep_stdout_to_ourselves() -> None:
    """Reserves stdout for Python: the first collectives of each process print to it from C++."""
    sys.stdout.flush()
    ours = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdout = os.fdopen(ours, "w", encoding=encoding, errors=errors, buffering=1)


def myself(place: Place, trouble: str, work: str) -> Member:
    """The data of this process for the others."""
    known = hasattr(os, "sched_getaffinity")
    return {
        "index": place.index,
        "count": place.count,
        "host": socket.gethostname(),
        "cores": sorted(os.sched_getaffinity(0) if known else range(os.cpu_count() or 1)),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "trouble": trouble,
        "work": zlib.crc32(work.encode()),
    }


def meet(place: Place, trouble: str, work: str, seconds: float) -> list[Member]:
    """Waits until all processes have connected; returns the data of all.

    Raises:
        DistributedError: one has trouble, or another work than process 0.
        ValueError: one did not come.
    """
    me, deadline = myself(place, trouble, work), time.monotonic() + seconds
    answer = _receive(me, place, deadline) if place.index == 0 else _join(me, place, deadline)
    if "error" in answer:
        raise DistributedError(answer["error"], place.index)
    return answer["members"]


def _receive(me: Member, place: Place, deadline: float) -> dict[str, Any]:
    """Receives the others' data in process 0, and sends the data of all to each of them."""
    (host, port), count = address(place.coordinator), place.count
    members: dict[int, Member] = {0: me}
    with contextlib.ExitStack() as stack:
        try:
            server = _listen(own_address(host), port)
        except OSError as error:
            raise ValueError(
                f"port {port} cannot be used to meet the other processes ({error.strerror}); name "
                f"another one with --coordinator HOST:PORT"
            ) from error
        stack.enter_context(server)
        streams, wrong = [], ""
        while len(members) < count and not wrong:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                connection = stack.enter_context(server.accept()[0])
            except TimeoutError:
                missing = ", ".join(str(i) for i in range(count) if i not in members)
                wrong = f"of {count} processes these have not come to port {port}: {missing}"
                break
            connection.settimeout(10)
            stream = stack.enter_context(connection.makefile("rw", encoding="utf-8"))
            with contextlib.suppress(OSError, ValueError, KeyError):  # another program
                other = json.loads(stream.readline())
                index = other["index"]
                streams.append(stream)
                if index in members or other["count"] != count:
                    wrong = (
                        f"a process came as {index} of {other['count']} to {len(members)} of "
                        f"{count}: each needs a --process_id of its own, all the same count"
                    )
                members[index] = other
        answer = {"error": wrong} if wrong else _outcome([members[i] for i in range(count)])
        for stream in streams:
            with contextlib.suppress(OSError):
                print(json.dumps(answer), file=stream, flush=True)
        return answer


def _outcome(members: list[Member]) -> dict[str, Any]:
    """The answer of process 0 to all: an error, or the data of all."""
    for index, member in enumerate(members):
        if member["trouble"]:
            return {"error": f"process {index}: " * bool(index) + member["trouble"]}
    for index, member in enumerate(members):
        if member["work"] != members[0]["work"]:
            return {
                "error": f"process {index} was given another command or config file than process 0"
            }
    return {"members": members}


def _join(me: Member, place: Place, deadline: float) -> dict[str, Any]:
    """Sends a process's data to process 0, and returns its answer."""
    host, port = address(place.coordinator)
    try:
        with _connect(host, port, deadline) as connection:
            connection.settimeout(max(deadline - time.monotonic(), 1) + 5)
            stream = connection.makefile("rw", encoding="utf-8")
            print(json.dumps(me), file=stream, flush=True)
            return json.loads(stream.readline())
    except socket.gaierror as error:
        raise ValueError(f"--coordinator {place.coordinator}: no host {host} is known") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise ValueError(
            f"process {place.index} cannot reach process 0 at {place.coordinator} ({reason})"
        ) from error


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connects to process 0, and tries again until it listens or the deadline has passed."""
    while True:
        try:
            return socket.create_connection((host, port), max(deadline - time.monotonic(), 0.1))
        except socket.gaierror:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def own_address(host: str) -> str:
    """Resolves `host` to this machine's address to listen at; '' is all of its addresses.

    It is '' where no address is this machine's own, as that of a service or of a mapped port, and
    where a name resolves to loopback in this machine's own table alone, as Debian's 127.0.1.1:
    other machines then resolve it to another address.
    """
    found = []
    with contextlib.suppress(socket.gaierror):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    for family, kind, _, _, place in found:
        loopback = ipaddress.ip_address(place[0]).is_loopback
        if loopback and host not in ("localhost", place[0]):
            continue
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(place)
            return str(place[0])
    return ""


def _listen(host: str, port: int) -> socket.socket:
    """Opens a server at one address, or at all of this machine's."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def _bind_address(place: Place) -> str | None:
    """The address of JAX's own coordinator; None, its default, is all addresses."""
    host, port = address(place.coordinator)
    own = own_address(host)
    return f"{f'[{own}]' if ':' in own else own}:{port}" if own else None


def share_of_cores(members: list[Member]) -> int:
    """Cores for each process, the same number for all; shared cores are divided between them."""

    def share(member: Member) -> int:
        near = [other["cores"] for other in members if other["host"] == member["host"]]
        return int(sum(1 / sum(core in cores for cores in near) for core in member["cores"]) + 1e-6)

    return max(1, min(map(share, members)))


def own_gpus(members: list[Member], index: int) -> list[int]:
    """The indices of the visible GPUs that a process takes; [] is all of them.

    Processes on one machine that see the same GPUs take one each, by their order.
    """
    me = members[index]
    near = [i for i, other in enumerate(members) if other["host"] == me["host"]]
    seen = me["gpus"]
    apart = any(members[i]["gpus"] != seen for i in near)
    given = seen is not None and len(seen.split(",")) < len(near)  # srun --gpus-per-task
    return [] if len(near) == 1 or apart or given else [near.index(index)]
