"""Two processes on one host: equal results, output of one process, and failures."""

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from support.paths import OWN_CODE
from support.ports import free_port

import purejaxppo.cli.train as train_command
from purejaxppo import restore
from purejaxppo.parallel import places, processes
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.evaluation import evaluate
from purejaxppo.runs.rows import read_csv
from purejaxppo.setup import divide, resolve, resolve_shards

toy = pytest.mark.toy
pytestmark = pytest.mark.xdist_group("processes")

CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 2, learning_rate_schedule: constant}
eval: {num_episodes: 4}
logging: {tensorboard: false}
num_shards: 2
total_timesteps: 2048
"""
LONG = ["--total_timesteps", "100_000_000", "--eval.num_episodes", "0"]
TIMES = ("seconds", "charts/SPS")
COMMAND = [sys.executable, "-m", "purejaxppo.train", "--config", "small.yaml"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(CARTPOLE)
    return tmp_path


def by_hand(index, count, *flags, port):
    place = f"--coordinator 127.0.0.1:{port} --num_processes {count} --process_id {index}".split()
    return begin([*COMMAND, *place, *flags])


def begin(command, **environ):
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", **environ},
    )


def both(*flags):
    port = free_port()
    return [by_hand(i, 2, *flags, port=port) for i in range(2)]


def ends(processes, seconds=200):
    """Return (exit code, stdout, stderr) of each process."""
    try:
        told = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [(p.returncode, *texts) for p, texts in zip(processes, told, strict=True)]


def alone(*flags):
    jax.clear_caches()  # other processes do not have the compiled programs of earlier tests
    assert train_command.main(["--config", "small.yaml", *flags]) == 0


def rows(run):
    """Return the logged rows without the columns that depend on time."""
    kept = read_csv(Path(run, "metrics.csv"))
    assert kept
    return [{k: v for k, v in row.items() if k not in TIMES} for row in kept]


def mpirun(*flags):
    found = shutil.which("mpirun")
    if found is None:
        pytest.skip("mpirun is not installed (Debian: apt install openmpi-bin)")
    root = getpass.getuser() == "root"
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return begin(
        [found, "-n", "2", "--oversubscribe", *COMMAND, *flags], **(allowed if root else {})
    )


def slurm(*flags):
    """Start two processes as `srun -n 2` does on this host."""
    step = {
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NTASKS": "2",
    }
    return [
        begin([*COMMAND, *flags], **step, SLURM_PROCID=str(i), SLURM_LOCALID=str(i))
        for i in range(2)
    ]


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    """Rows of the same run in one process with two devices."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "small.yaml").write_text(CARTPOLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        alone("--run_dir", "one")
        return rows("one")


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
def test_two_processes_by_hand_equal_one_process_and_only_process_0_prints():
    flags = ("--total_timesteps", "1024", "--eval.interval", "256", "--run_dir")
    (code, out, err), other = ends(both(*flags, "two"))
    assert (code, err) == (0, "")
    assert "on 2 x cpu (cpu) in 2 processes" in out
    assert other == (0, "", "")
    alone(*flags, "one")
    assert rows("two") == rows("one")  # bit-identical, because a sum of two numbers has no order
    assert Path("two/learning_curve.png").is_file()
    assert evaluate(restore("two"), 3).returns.shape == (3,)


@pytest.mark.slow
def test_two_processes_train_a_custom_environment_network_and_auxiliary_loss(folder):
    shutil.copy(OWN_CODE, folder / "mine.py")
    own = ["--env.name", "jax/mine.py:Walk", "--network.torso", "mine.py:Dense"]
    own += ["--ppo.terms", "mine.py:next_position", "--total_timesteps", "1024"]
    own += ["--eval.num_episodes", "0", "--run_dir"]
    (code, _, err), other = ends(both(*own, "two"))
    assert (code, err) == (0, "")
    assert other == (0, "", "")
    (copy,) = Path("two/code").rglob("mine.py")
    assert copy.read_bytes() == OWN_CODE.read_bytes()
    alone(*own, "one")
    assert rows("two") == rows("one")
    assert rows("one")[-1]["losses/next_position"] > 0


@pytest.mark.full
def test_mpirun_is_detected_and_one_process_resumes_the_run_of_two(curve):
    ((code, out, err),) = ends([mpirun("--run_dir", "two", "--total_timesteps", "1024")])
    assert code == 0, (out, err)
    assert out.count("in 2 processes") == 1
    alone("--run_dir", "two")
    drop = "eval/"  # evaluations are at other updates than in a run of twice the length
    assert [{k: v for k, v in row.items() if drop not in k} for row in rows("two")] == [
        {k: v for k, v in row.items() if drop not in k} for row in curve
    ]


@pytest.mark.slow
def test_slurm_is_detected_and_two_processes_resume_the_run_of_one(curve):
    alone("--run_dir", "two", "--total_timesteps", "1024")
    (code, out, err), other = ends(slurm("--run_dir", "two"))
    assert code == 0, (out, err)
    assert "resuming at" in out
    assert other == (0, "", "")
    drop = "eval/"
    assert [{k: v for k, v in row.items() if drop not in k} for row in rows("two")] == [
        {k: v for k, v in row.items() if drop not in k} for row in curve
    ]


@pytest.mark.full
def test_seeds_are_divided_over_processes():
    flags = ("--num_seeds", "2", "--num_shards", "1", "--total_timesteps", "1024")
    alone(*flags, "--run_dir", "one")
    (code, out, err), other = ends(both(*flags, "--run_dir", "two"))
    assert code == 0, (out, err)
    assert "2 seeds with 8 environments each" in out
    assert other == (0, "", "")
    assert rows("two") == rows("one")


@pytest.mark.slow
def test_brax_trained_by_two_processes_equals_one_process():
    pytest.importorskip("brax")
    flags = ("--env.name", "brax/inverted_pendulum", "--total_timesteps", "512")
    flags = (*flags, "--eval.num_episodes", "0", "--run_dir")
    alone(*flags, "one")
    (code, out, err), other = ends(both(*flags, "two"))
    assert (code, err) == (0, ""), out
    assert other == (0, "", "")
    assert rows("two") == rows("one")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param("envpool", marks=pytest.mark.full),
        pytest.param("gymnasium", marks=pytest.mark.slow),
    ],
)
def test_each_process_has_its_own_pool_of_host_simulators(family):
    pytest.importorskip(family)
    flags = ("--env.name", f"{family}/CartPole-v1", "--num_shards", "0")
    flags = (*flags, "--run_dir")
    for run in ("first", "again")[: 1 + (family == "envpool")]:
        (code, out, err), other = ends(both(*flags, run))
        assert code == 0, (out, err)
        assert "8 environments in 2 shards" in out
        assert other == (0, "", "")
    assert rows("first")[-1]["update"] == 2048 / (8 * 16)
    # Reset steps are not counted. The episodes of both pools are counted.
    assert 1600 < rows("first")[-1]["global_step"] < 2048
    if family == "envpool":
        assert rows("again") == rows("first")
    assert evaluate(restore("first"), 3).returns.shape == (3,)
    with pytest.raises(ValueError, match=r"\(processes: 1\). Start 2"):
        divide(resolve(restore("first").config), jax.devices()[:1])


@toy
def test_a_host_simulator_has_one_shard_per_process(monkeypatch):
    pytest.importorskip("envpool")
    words = ["--config", "small.yaml", "--env.name", "envpool/CartPole-v1"]
    with pytest.raises(ValueError, match=r"\(processes: 1\). Start 2"):
        divide(resolve(train_command.parse(words).config), jax.devices()[:1])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for shards in ("0", "2"):
        config = train_command.parse([*words, "--num_shards", shards]).config
        assert resolve_shards(config, 4, on_host=True).num_shards == 2


def wait_for(condition, processes, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
            for process in processes:
                process.kill()
            pytest.fail(f"nothing happened: {ends(processes)}")
        time.sleep(0.02)


def saves(run):
    return sorted(int(p.name) for p in Path(run, "checkpoints").glob("[0-9]*") if p.name.isdigit())


@pytest.mark.full
def test_process_0_chooses_the_newest_complete_checkpoint_for_all():
    folder, flags = Path("lr=[1]"), ("--run_dir", "lr=[1]")
    alone(*flags, "--total_timesteps", "1024", "--checkpoint.interval", "512")
    first, last = saves(folder)
    shutil.rmtree(folder / "checkpoints" / str(last) / "train")
    (code, out, err), other = ends(both(*flags))
    assert code == 0, (out, err)
    assert f"resuming at {first:,} steps" in out
    assert err.count("\n") == 1
    assert f"corrupt checkpoint {last} (train cannot be read" in err
    assert f"from the checkpoint at {first:,} steps, {last - first:,} steps earlier" in err
    assert other == (0, "", "")
    assert (folder / "checkpoints" / f"{last}.damaged").is_dir()
    assert restore(folder, "last").env_steps == saves(folder)[-1] > last


BAD = """
import jax
import jax.numpy as jnp
from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box


class NanInProcess1:
    observation = Box((2,), -1.0, 1.0)
    action = Box((1,), -1.0, 1.0)
    max_episode_steps = 8

    def reset(self, key):
        first = jax.random.uniform(key)
        bad = (jax.process_index() == 1) & (first < 0.9)  # not in the check before the run starts
        return first, jnp.array([0.0, jnp.where(bad, jnp.nan, 1.0)])

    def step(self, key, state, action):
        no = jnp.array(False)
        return state, TaskStep(jnp.zeros(2), state, no, no)


class NotMadeInProcess1(NanInProcess1):
    def __init__(self):
        if jax.process_index() == 1:
            raise ValueError("no such file")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NanInProcess1", "env.name = jax/bad.py:NanInProcess1: reset returned observation[1] = "),
        ("NotMadeInProcess1", "env.name = jax/bad.py:NotMadeInProcess1: line "),
    ],
)
def test_process_0_reports_an_environment_that_fails_in_another_process(name, reason):
    Path("bad.py").write_text(BAD)
    (code, out, err), other = ends(both("--env.name", f"jax/bad.py:{name}", "--run_dir", "bad"))
    assert code == 2, (out, err)
    assert err.startswith(f"error: process 1: {reason}")
    assert err.count("\n") == 1
    assert other == (2, "", "")


@pytest.mark.full
def test_a_killed_process_is_reported_in_one_sentence_and_the_run_resumes():
    flags = ["--run_dir", "two", *LONG, "--checkpoint.interval", "1280"]
    flags += ["--logging.interval", "128"]
    processes = both(*flags)
    wait_for(lambda: saves("two"), processes)
    processes[1].kill()
    (code, out, err), _ = ends(processes, seconds=60)
    assert code == 2, (out, err)
    assert err.count("\n") == 1, err
    saved = saves("two")[-1]
    assert err.startswith("error: process 0 of 2 cannot reach another process after ")
    assert f"The last checkpoint is at {saved:,} steps. Run the same command to resume." in err
    assert restore("two", "last").env_steps == saved
    processes = both(*flags)
    wait_for(lambda: saves("two")[-1] > saved, processes)
    processes[1].send_signal(signal.SIGTERM)
    for (code, out, err), count in zip(ends(processes), (1, 0), strict=True):
        assert code == 128 + signal.SIGTERM, (out, err)
        assert out.count("SIGTERM: saved at") == count
        assert err == ""
    updates = [row["update"] for row in read_csv(Path("two/metrics.csv"))]
    assert updates == list(range(1, len(updates) + 1))


def test_sigterm_before_the_first_update_ends_all_processes_immediately():
    """JAX's runtime must not replace the signal handler."""
    processes = both("--run_dir", "two", *LONG)
    wait_for(Path("two/config.yaml").exists, processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for code, out, err in ends(processes, seconds=20):
        assert code == 128 + signal.SIGTERM, (out, err)
        assert err == "error: interrupted; everything saved so far is kept\n"


WRONG = [
    (["--num_shards", "1"], "num_shards = 1: cannot be divided among 2 processes"),
    (["--env.num_envs", "5", "--num_shards", "5"], "Use 1 or 5 processes"),
    (["--num_shards", "0", "--env.num_envs", "7"], "must be divisible by num_shards = 2. Try"),
    (
        ["--env.name", "envpool/CartPole-v1", "--num_seeds", "2"],
        "host simulators in several processes support only",
    ),
    (
        ["--env.name", "envpool/CartPole-v1", "--asynchronous"],
        "asynchronous = true supports only one process, but 2 were started",
    ),
    (["--logging.video_interval", "320"], "several processes cannot record videos"),
]


@toy
@pytest.mark.parametrize(("flags", "message"), WRONG)
def test_a_config_that_two_processes_cannot_divide_gets_a_one_sentence_error(
    flags, message, monkeypatch
):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "is_distributed", lambda: True)
    words = ["--config", "small.yaml", "--num_shards", "0", *flags]
    config = train_command.parse(words).config
    with pytest.raises(ValueError) as error:
        divide(resolve(config), jax.devices())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@toy
def test_more_devices_than_a_process_has_are_rejected():
    config = train_command.parse(["--config", "small.yaml", "--devices", "1000"]).config
    with pytest.raises(ValueError, match="devices = 1000: JAX finds only 2"):
        start_jax(resolve(config), places.Place(1, 2, "here:1", cores=2))


@toy
@pytest.mark.parametrize(("index", "message"), [(0, "error: wrong\n"), (1, "")])
def test_only_process_0_reports_errors_of_all_processes(index, message, monkeypatch, capsys):
    def start(words):
        raise processes.DistributedError("wrong", index)

    monkeypatch.setattr(train_command, "start", start)
    assert train_command.main([]) == 2
    assert capsys.readouterr() == ("", message)


@toy
def test_an_error_of_one_process_is_raised_in_all_with_its_index(monkeypatch):
    def of_two(row):
        return np.stack([np.zeros_like(row), row])

    monkeypatch.setattr(processes, "is_distributed", lambda: True)
    monkeypatch.setattr(processes, "_gather", of_two)
    with processes.raise_together():
        pass
    with (
        pytest.raises(processes.DistributedError, match="process 1: no disk"),
        processes.raise_together(),
    ):
        raise OSError("no disk")


def test_process_0_reports_a_wrong_flag_before_any_compile():
    (code, out, err), other = ends(slurm("--num_shards", "1", "--run_dir", "never"))
    assert (code, out) == (2, "")
    assert err.startswith("error: num_shards = 1: cannot be divided among 2 processes")
    assert err.count("\n") == 1
    assert other == (2, "", "")
    assert not Path("never").exists()


@toy
def test_the_functions_for_processes_do_nothing_in_one_process():
    assert processes.maximum(1.5, 2) == (1.5, 2)
    assert processes.is_main()
    with pytest.raises(ValueError, match="wrong"), processes.raise_together():
        raise ValueError("wrong")
    np.testing.assert_equal(processes.abort(3), 3)
    processes.finish()
