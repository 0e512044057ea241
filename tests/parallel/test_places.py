"""The index, count and address of a process, from mpirun, srun, or flags."""

import os
import shutil
import socket
import subprocess
import sys

import pytest
from support.children import environment
from support.ports import free_port
from support.runs import error_of

import purejaxppo.cli.train as train_command
from purejaxppo.parallel import places
from purejaxppo.parallel.places import ALONE, Place

toy = pytest.mark.toy
pytestmark = [pytest.mark.usefixtures("config_file"), pytest.mark.xdist_group("processes")]

OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_NAMESPACE": "177995777",
    "OMPI_MCA_orte_hnp_uri": "177995776.0;tcp://192.0.2.2,10.0.0.2:56255;tcp6://[fd00::2]:45193",
}
OPEN_MPI_5 = {
    **{name: value for name, value in OPEN_MPI_4.items() if name.startswith("OMPI_COMM")},
    "PMIX_NAMESPACE": "prterun-node1-4711@1",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_CPUS_ON_NODE": "1024",
}
PLACES = [
    (["--process_id", "1"], "started manually require --coordinator HOST:PORT, --num_processes"),
    (["--coordinator", "here:1"], "Add the missing flags."),
    (
        ["--num_processes", "2", "--process_id", "2"],
        "--process_id = 2: must be from 0 to 1 for 2 processes",
    ),
    (["--coordinator", "here"], "--coordinator = here: must be HOST:PORT"),
    (["--coordinator", "here:http"], "must be HOST:PORT"),
    (["--process_id", "first"], "--process_id = 'first': must be"),
]


@toy
@pytest.mark.parametrize(("flags", "message"), PLACES)
def test_impossible_process_flags_get_a_one_sentence_error(flags, message, capsys):
    assert train_command.main(["--config", "small.yaml", "--run_dir", "never", *flags]) == 2
    assert message in error_of(capsys)


def without(environ, part):
    return {name: value for name, value in environ.items() if part not in name}


def local(environ):
    """Return the variables of an mpirun whose processes are all on this host."""
    return {**environ, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}


@toy
def test_open_mpi_4_gives_index_count_and_address():
    place = places.launched(OPEN_MPI_4)
    assert (place.index, place.count, place.local_index, place.local_count) == (3, 4, 1, 2)
    host, port = places.address(place.coordinator)
    assert host == "192.0.2.2" and 61440 <= port < 65536
    only_6 = {**OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri": "1.0;tcp6://[fd00::2,fd00::3]:45193"}
    assert places.launched(only_6).coordinator == f"[fd00::2]:{port}"


@toy
@pytest.mark.parametrize("environ", [OPEN_MPI_4, OPEN_MPI_5], ids=["4", "5"])
def test_mpirun_on_one_host_uses_the_loopback_address(environ):
    place = places.place_of(local(environ), "", 0, -1)
    assert (place.index, place.count, place.local_index, place.local_count) == (3, 4, 3, 4)
    assert places.is_loopback(place.coordinator)
    other_job = {**local(environ), "PMIX_NAMESPACE": "another"}
    assert places.launched(other_job).coordinator != place.coordinator


@toy
def test_open_mpi_5_on_several_hosts_needs_the_coordinator_flag():
    with pytest.raises(ValueError, match="Add --coordinator HOST:PORT"):
        places.place_of(OPEN_MPI_5, "", 0, -1)
    place = places.place_of(OPEN_MPI_5, "node1:5000", 0, -1)
    assert (place.coordinator, place.index, place.local_count) == ("node1:5000", 3, 2)


@toy
def test_srun_gives_index_count_and_address():
    place = places.launched(SRUN)
    assert (place.index, place.count, place.coordinator) == (1, 4, "gpu007:61517")
    assert (place.local_index, place.local_count) == (1, 3)
    last = {**SRUN, "SLURM_PROCID": "3", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    assert (places.launched(last).index, places.launched(last).local_count) == (3, 1)
    one_node = {**SRUN, "SLURM_STEP_NODELIST": "gpu007", "SLURM_STEP_TASKS_PER_NODE": "4"}
    assert places.launched(one_node).coordinator == "127.0.0.1:61517"


@toy
@pytest.mark.parametrize(
    ("text", "node"),
    [("a1", "a1"), ("a1,b2", "a1"), ("gpu[007-9,12],b3", "gpu007"), ("gpu[12,14]", "gpu12")],
)
def test_the_first_node_of_a_slurm_node_list_is_read(text, node):
    assert places.first_node(text) == node


@toy
@pytest.mark.parametrize(("text", "counts"), [("2", [2]), ("3,1", [3, 1]), ("4(x2),1", [4, 4, 1])])
def test_the_tasks_per_node_of_slurm_are_read(text, counts):
    assert places.task_counts(text) == counts


@toy
def test_single_processes_are_not_distributed():
    assert places.launched({}) == ALONE
    assert places.launched({**OPEN_MPI_4, "OMPI_COMM_WORLD_SIZE": "1"}) == ALONE
    assert places.launched(without(SRUN, "STEP")) == ALONE
    assert places.place_of(SRUN, "", 1, -1) == ALONE


@toy
def test_an_interactive_shell_of_a_job_is_not_distributed():
    shell = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert places.launched(SRUN | shell) == ALONE
    assert places.launched({**SRUN, "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4"}).count == 4


@toy
@pytest.mark.parametrize(
    ("environ", "name"),
    [
        *[(OPEN_MPI_5, f"OMPI_COMM_WORLD_{x}") for x in ("RANK", "LOCAL_RANK", "LOCAL_SIZE")],
        *[(SRUN, f"SLURM_{x}") for x in ("PROCID", "LOCALID", "STEP_TASKS_PER_NODE")],
    ],
)
def test_the_error_of_a_missing_launcher_variable_names_it(environ, name):
    with pytest.raises(ValueError, match=f"^{name} is not set: .*must set"):
        places.launched(without(environ, name))
    with pytest.raises(ValueError, match=f"^{name} = some: .*must set"):
        places.launched({**environ, name: "some"})


@toy
def test_flags_that_contradict_the_launcher_are_rejected():
    with pytest.raises(ValueError, match="as process 3 of 4"):
        places.place_of(OPEN_MPI_4, "node1:5000", 4, 0)


@toy
@pytest.mark.parametrize(
    ("own", "machine", "share"),
    [
        (16, 16, 4),  # not bound: a fourth of the host
        (4, 16, 4),  # bound to four cores each
        (8, 16, 4),  # two processes bound to one half of the host
        (1, 2, 1),
    ],
)
def test_processes_on_one_host_share_its_cores(own, machine, share, monkeypatch):
    monkeypatch.setattr(places, "cpu_cores", lambda: own)
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    assert places.launched(local(OPEN_MPI_5)).cores == share
    on_one_node = {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": str(machine)}
    assert places.launched(SRUN | on_one_node).cores == share
    monkeypatch.setattr(os, "cpu_count", lambda: 4 * machine)  # mpirun in a part of the host
    assert places.launched(local(OPEN_MPI_5) | on_one_node).cores == share


@toy
def test_processes_started_manually_share_cores_only_at_a_loopback_address(monkeypatch):
    monkeypatch.setattr(places, "cpu_cores", lambda: 8)
    assert places.place_of({}, "localhost:9", 4, 1) == Place(
        1, 4, "localhost:9", local_index=1, local_count=4, cores=2, gpus=(1,)
    )
    assert places.place_of({}, "node1:9", 4, 1) == Place(1, 4, "node1:9")


@toy
@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ()),  # fewer GPUs than processes: each has its own
        ({"CUDA_VISIBLE_DEVICES": "0,1,2", "SLURM_GPUS_PER_TASK": "3"}, ()),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, ()),  # alone on its node: all visible GPUs
    ],
)
def test_processes_on_one_host_take_one_gpu_each_unless_assigned(environ, gpus):
    assert places.launched(SRUN | environ).gpus == gpus


@toy
@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("0,1,2,3,4,5", (2, 3)),  # of all processes
        ("2,3", ()),  # of this one
    ],
)
def test_processes_on_one_host_take_the_number_of_gpus_in_devices(visible, gpus):
    environ = SRUN | {"CUDA_VISIBLE_DEVICES": visible}
    assert places.place_of(environ, "", 0, -1, devices=2).gpus == gpus


def by_hand(port, index, *flags):
    place = f"--coordinator 127.0.0.1:{port} --num_processes 2 --process_id {index}".split()
    command = [sys.executable, "-m", "purejaxppo.train", "--config", "small.yaml", *place, *flags]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def result(process):
    """Return (exit code, stdout, stderr)."""
    try:
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_process_gets_a_one_sentence_error_after_waiting(index):
    port = free_port()
    assert result(by_hand(port, index, "--wait_seconds", "0.5")) == (
        2,
        "",
        f"error: process {index}: not all 2 processes connected to 127.0.0.1:{port} within 0.5 s. "
        f"Start all of them with the same --coordinator, which they must be able to reach.\n",
    )


def test_a_port_in_use_gets_a_one_sentence_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, out, err = result(by_hand(port, 0))
    assert (code, out) == (2, "")
    assert err == (
        f"error: port {port} of process 0 cannot be used (Address already in use). Choose another "
        f"port with --coordinator HOST:PORT.\n"
    )


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--seed", ("0", "1")),
        ("--config", ("small.yaml", "other.yaml")),  # the run folder is named after it
        ("--num_processes", ("2", "3")),
    ],
)
def test_only_process_0_reports_processes_with_different_commands(flag, values, config_file):
    shutil.copy(config_file, config_file.with_name("other.yaml"))
    port = free_port()
    both = [by_hand(port, index, flag, value) for index, value in enumerate(values)]
    first, second = map(result, both)
    sentence = "process 1 has another command, config or version than process 0"
    assert first == (2, "", f"error: {sentence}. Start all processes with the same ones.\n")
    assert second == (2, "", "")
