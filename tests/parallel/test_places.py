"""Index and count of a process: from mpirun, from srun, or from flags."""

import pytest
from support.runs import error_of

import purejaxppo.commands.train as train_command
from purejaxppo.parallel import places, processes

pytestmark = [pytest.mark.toy, pytest.mark.usefixtures("config_file")]

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "177995776.0;tcp://192.0.2.2,10.0.0.2:56255;tcp6://[fd00::2]:45193",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "gpu[007-9,12],b3",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "1",
}
PLACES = [
    (["--process_id", "1"], "--coordinator HOST:PORT and --num_processes missing"),
    (["--coordinator", "here:1"], "--num_processes and --process_id missing"),
    (["--num_processes", "2", "--process_id", "2"], "2 processes are numbered from 0 to 1"),
    (["--coordinator", "here"], "--coordinator here is not of the form HOST:PORT"),
    (["--coordinator", "here:http"], "is not of the form HOST:PORT"),
    (["--num_processes", "-2"], "--num_processes is at least 1"),
    (["--process_id", "first"], "--process_id = 'first' is a word"),
]


@pytest.mark.parametrize(("flags", "said"), PLACES)
def test_places_that_cannot_be_get_one_sentence(flags, said, capsys):
    assert train_command.main(["--config", "small.yaml", "--run_dir", "never", *flags]) == 2
    assert said in error_of(capsys)


def test_places_are_read_from_mpirun_and_srun():
    place = places.launched(OPEN_MPI)
    assert (place.index, place.count, place.by_launcher) == (3, 4, True)
    assert place.coordinator.startswith("192.0.2.2:")
    near = places.launched({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert near.coordinator.startswith("127.0.0.1:")
    place = places.launched(SRUN)
    assert (place.index, place.count, place.coordinator) == (1, 4, "gpu007:61517")
    assert places.first_node("a1,b2") == "a1"
    assert places.first_node("a1") == "a1"


def test_one_process_of_a_launcher_a_batch_script_and_num_processes_1_are_alone():
    assert places.launched({}) == processes.ALONE
    assert places.launched({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) == processes.ALONE
    assert places.launched({k: v for k, v in SRUN.items() if "STEP" not in k}) == processes.ALONE
    assert places.place_of(places.launched(SRUN), "", 1, -1) == processes.ALONE


def test_flags_add_to_what_a_launcher_says_and_may_not_contradict_it():
    given = places.launched({k: v for k, v in OPEN_MPI.items() if "uri" not in k})
    with pytest.raises(ValueError, match="add --coordinator HOST:PORT"):
        places.place_of(given, "", 0, -1)
    assert places.place_of(given, "node1:5000", 0, -1).coordinator == "node1:5000"
    with pytest.raises(ValueError, match="this is process 3 of 4"):
        places.place_of(given, "node1:5000", 4, 0)
