"""Flags of the commands, in addition to config fields. The docstrings are the help."""

from dataclasses import dataclass, field
from typing import Literal

from purejaxppo.config.schema import Scalar, setting


@dataclass(frozen=True)
class TrainFlags:
    """Train an agent with PPO.

    Flags override fields of the config. Ctrl-C saves and exits. Run the same command again to
    resume.

    Examples:
      purejaxppo train --config hopper.yaml
      purejaxppo train --env.name gymnax/CartPole-v1 --total_timesteps 500_000
      purejaxppo train --config cartpole.yaml --seed 3 --ppo.learning_rate 1e-3
      purejaxppo train --config cartpole.yaml --num_seeds 8 --network.hidden 128 128
      purejaxppo train --config playground/CheetahRun
      purejaxppo train --config cartpole_hidden.yaml --network.rnn lstm --video
    """

    config: str = ""
    """YAML file, name of a library config, or playground/TASK for Playground's tuned settings.
    Empty: the defaults. `purejaxppo list configs` lists the library's configs."""
    clobber: bool = False
    """Delete the run folder and start from scratch, instead of resuming."""
    video: bool = False
    """Write a video of one episode of the best agent to video.mp4 in the run folder when training
    ends."""
    list_envs: bool = False
    """Print the families of environments and exit. --list_envs FAMILY prints the tasks of a
    family."""
    list_configs: bool = False
    """Print the library's configs and exit."""
    coordinator: str = ""
    """Address of process 0 as HOST:PORT, for training with several processes. Empty: taken from
    mpirun or srun."""
    num_processes: int = setting(0, low=0)
    """Number of processes that train together. 0: the number that mpirun or srun started, otherwise
    one."""
    process_id: int = setting(-1, low=-1)
    """Number of this process, from 0. -1: taken from mpirun or srun."""
    wait_seconds: float = setting(120.0, above=0)
    """Seconds to wait for the other processes at the start."""


@dataclass(frozen=True)
class EvaluateFlags:
    """Evaluate a trained agent on whole episodes, and optionally write a video.

    Examples:
      purejaxppo evaluate --run runs/hopper-s0 --episodes 200
      purejaxppo evaluate --run runs/hopper-s0 --render video.mp4
      purejaxppo evaluate --run runs/hopper-s0 --env.randomize friction 0.5

    Flags --env.* change the environment, to evaluate the agent in other conditions than the run's.
    """

    run: str = ""
    """Run folder, as written by `purejaxppo train`."""
    episodes: int = setting(100, low=1)
    """Number of episodes, rounded up to a multiple of the agents of an environment. With --elo:
    number of games per pair of agents."""
    stochastic: bool = False
    """Sample actions. Without --stochastic and --deterministic, actions are chosen as in the run's
    evaluations."""
    deterministic: bool = False
    """Take the mode of the distribution."""
    checkpoint: str = "best"
    """Checkpoint to load: best, last, or its number of environment steps."""
    member: int = setting(-1, low=-1)
    """Agent of a run with several seeds, from 0. -1: all agents."""
    seed: int = setting(0, low=-(2**31), high=2**31 - 1)
    """Seed of the evaluation."""
    render: str = ""
    """Write a video of one episode to this file: .mp4, .gif or .html."""
    elo: bool = False
    """Compute Elo ratings of all checkpoints and a random player from games against each other, for
    two-player games of pgx/. Writes elo.csv and elo.png to the run folder."""


@dataclass(frozen=True)
class SweepFlags:
    """Train with many settings and compare them.

    Settings that differ only in tunable numbers train in parallel in one program, with all their
    seeds. Flags override fields of the config. Run the same command again to resume.

    Examples:
      purejaxppo sweep --config cartpole.yaml --grid ppo.gamma=0.98,0.99 --num_seeds 8
      purejaxppo sweep --env.name gymnax/Catch-bsuite --grid ppo.learning_rate=1e-4,1e-3
      purejaxppo sweep --config cartpole.yaml --search random --num_trials 64 --search_space r.yaml
      purejaxppo sweep --config cartpole.yaml --search optuna --num_trials 64 --search_space r.yaml
      purejaxppo sweep --config hopper.yaml --search population --num_trials 8 --search_space r.yaml
    """

    config: str = ""
    """YAML file, name of a library config, or playground/TASK for Playground's tuned settings.
    Empty: the defaults. `purejaxppo list configs` lists the library's configs."""
    grid: tuple[str, ...] = ()
    """Field and values, such as ppo.gamma=0.98,0.99. Repeat it for other fields; all combinations
    are trained."""
    search: Literal["grid", "random", "optuna", "population"] = "grid"
    """Search method: a grid, random samples, Optuna, or population-based training. grid: all
    combinations of --grid. random: samples from the search space. optuna: Optuna chooses from the
    search space, based on earlier results. population: population-based training (Jaderberg et al.
    2017), starting with samples from the search space."""
    num_trials: int = setting(0, low=0)
    """Number of settings to try, or of agents in the population. Required for the searches random,
    optuna and population."""
    search_space: str = ""
    """YAML file of ranges: for each field {uniform: [low, high]}, {log_uniform: [low, high]} or
    {choice: [a, b]}."""
    optuna_batch: int = setting(8, low=1)
    """Number of settings that Optuna chooses at a time. They train in parallel."""
    population_interval: int = setting(0, low=0)
    """Environment steps of each agent between two comparisons of the population. 0: a twentieth of
    total_timesteps."""
    population_share: float = setting(0.25, above=0, high=0.5)
    """Fraction of the population that each comparison replaces with copies of the best agents."""
    population_factor: float = setting(1.25, low=1)
    """Copied agents' numbers are multiplied or divided by this factor, or kept."""
    select_by: Literal["last", "best", "mean"] = "last"
    """Score of an agent: the return of its last evaluation, of its best one, or the mean over all
    evaluations."""
    memory_gb: float = setting(0.0, low=0)
    """Memory for agents, in GB. Agents that do not fit train in a later batch. 0: four fifths of
    the free memory."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Where to train: on this host, on a Ray cluster, or as SLURM jobs."""
    launcher_options: dict[str, Scalar] = field(default_factory=dict)
    """Options of ray.remote or of submitit's executor, as name-value pairs."""
    clobber: bool = False
    """Delete the sweep's folder and start from scratch, instead of resuming."""


@dataclass(frozen=True)
class ExportFlags:
    """Export a trained agent's deterministic policy to a file, and verify the file.

    Examples:
      purejaxppo export --run runs/hopper-s0 --to policy.onnx
      purejaxppo export --run runs/hopper-s0 --to policy.npz --checkpoint last
    """

    run: str = ""
    """Run folder, as written by `purejaxppo train`."""
    to: str = ""
    """File to write: .onnx, or .npz for the NumPy player (purejaxppo.export.player)."""
    checkpoint: str = "best"
    """Checkpoint to load: best, last, or its number of environment steps."""
    member: int = setting(-1, low=-1)
    """Agent of a run with several seeds, from 0. Required for such runs."""
    batch: int = setting(1, low=1)
    """Number of observations per call of the exported policy."""
    engine: Literal["", "godot"] = ""
    """godot: write the .onnx file that the plugin of Godot RL Agents loads."""
    force: bool = False
    """Overwrite an existing file."""


@dataclass(frozen=True)
class AnatomyFlags:
    """Measure where the time of training goes, and which settings make it faster.

    Prints the time of each piece of an update: simulator, pipes, transfer, inference, statistics,
    advantages, update, logging. Then trains with other workers, asynchronously and with more
    environments, and recommends settings that are clearly faster. No run folder is written. Flags
    override fields of the config. Ctrl-C prints the measurements so far.

    Examples:
      purejaxppo anatomy --config hopper_v5.yaml
      purejaxppo anatomy --config mine.yaml --workers 1 2 4 8 --seconds 300
      purejaxppo anatomy --config cartpole.yaml --env.name gymnasium/CartPole-v1 --json times.json
    """

    config: str = ""
    """YAML file, name of a library config, or playground/TASK for Playground's tuned settings.
    Empty: the defaults. `purejaxppo list configs` lists the library's configs."""
    workers: tuple[int, ...] = ()
    """Numbers of workers to compare, for gymnasium/, pettingzoo/ and envpool/ (its num_threads).
    Empty: powers of two up to twice the cores; EnvPool's threads stay."""
    seconds: float = setting(120.0, above=0)
    """Seconds for everything, with compilation. The pieces are measured in at least three
    rounds."""
    plot: str = "anatomy.png"
    """PNG file to write, with a bar for each piece. Empty: none."""
    json: str = ""
    """JSON file to write, with all measurements. Empty: none."""


FLAGS: dict[str, type] = {
    "train": TrainFlags,
    "evaluate": EvaluateFlags,
    "sweep": SweepFlags,
    "export": ExportFlags,
    "anatomy": AnatomyFlags,
}
"""Flags by command. `list` and `init` take positional arguments instead."""
