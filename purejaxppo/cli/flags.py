"""Flags of the commands that are not fields of a config; their docstrings are the help."""

from dataclasses import dataclass, field
from typing import Literal

from purejaxppo.config.schema import Scalar, setting


@dataclass(frozen=True)
class TrainFlags:
    """Train PPO.

    A config is read first, and flags replace single fields of it. Running the same command again
    resumes; Ctrl-C saves and ends.

    Examples:
      purejaxppo train --config hopper.yaml
      purejaxppo train --env.name gymnax/CartPole-v1 --total_timesteps 500_000
      purejaxppo train --config cartpole.yaml --seed 3 --ppo.learning_rate 1e-3
      purejaxppo train --config cartpole.yaml --num_seeds 8 --network.hidden 128 128
      purejaxppo train --config playground/CheetahRun
      purejaxppo train --config cartpole_hidden.yaml --network.rnn lstm --video
    """

    config: str = ""
    """A YAML file, the bare name of a config that comes with the library, or playground/TASK for
    the settings that Playground tuned; empty: defaults."""
    clobber: bool = False
    """Delete the run folder of an earlier run of this name and start from scratch."""
    video: bool = False
    """Write a video of one episode of the best agent at the end: video.mp4 in the run folder."""
    list_envs: bool = False
    """Print the families of environments, or with --list_envs FAMILY its tasks, and end."""
    list_configs: bool = False
    """Print the configs that come with the library, and end."""
    coordinator: str = ""
    """HOST:PORT of process 0; empty: from mpirun or srun."""
    num_processes: int = setting(0, low=0)
    """Processes that train together; 0: as many as mpirun or srun started, else one."""
    process_id: int = setting(-1, low=-1)
    """This process's number, from 0; -1: from mpirun or srun."""
    wait_seconds: float = setting(120.0, above=0)
    """Seconds that processes wait for each other when they start."""


@dataclass(frozen=True)
class EvaluateFlags:
    """Evaluate a trained agent over whole episodes, and draw one.

    Examples:
      purejaxppo evaluate --run runs/hopper-s0 --episodes 200
      purejaxppo evaluate --run runs/hopper-s0 --render video.mp4
    """

    run: str = ""
    """The run's folder, as made by `purejaxppo train`."""
    episodes: int = setting(100, low=1)
    """Whole episodes to run; with --elo, games of each pair."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely one."""
    deterministic: bool = False
    """Take the most likely action. Without either flag: as the run's evaluations did."""
    checkpoint: str = "best"
    """best, last, or the environment steps of a save."""
    member: int = setting(-1, low=-1)
    """Of a run of several seeds, the one to take: 0 is the first. -1: all."""
    seed: int = 0
    """Seed of the environments' starts."""
    render: str = ""
    """Draw one episode into this file: .mp4, .gif or .html."""
    elo: bool = False
    """Rate the run's saved agents and a random player by games against each other, for pgx/'s games
    of two players: writes elo.csv and elo.png."""


@dataclass(frozen=True)
class SweepFlags:
    """Train many settings.

    Those that differ in tunable numbers alone are trained in one program, all seeds of them. Flags
    replace single fields of the config. Running the same command again resumes.

    Examples:
      purejaxppo sweep --config cartpole.yaml --grid ppo.gamma=0.98,0.99 --num_seeds 8
      purejaxppo sweep --env.name gymnax/Catch-bsuite --grid ppo.learning_rate=1e-4,1e-3
      purejaxppo sweep --config cartpole.yaml --search random --num_trials 64 --search_space r.yaml
      purejaxppo sweep --config cartpole.yaml --search optuna --num_trials 64 --search_space r.yaml
      purejaxppo sweep --config hopper.yaml --search population --num_trials 8 --search_space r.yaml
    """

    config: str = ""
    """A YAML file, the bare name of a config that comes with the library, or playground/TASK for
    the settings that Playground tuned; empty: defaults."""
    grid: tuple[str, ...] = ()
    """A field and its values, as in ppo.gamma=0.98,0.99; once per field: every combination."""
    search: Literal["grid", "random", "optuna", "population"] = "grid"
    """Choice of settings. grid: those of --grid. random: drawn from the search space. optuna:
    chosen from it by Optuna, after the results so far. population: drawn from it for one population
    that evolves while it trains, population-based training (Jaderberg et al. 2017)."""
    num_trials: int = setting(0, low=0)
    """Settings to try from the search space, or agents of the population."""
    search_space: str = ""
    """A YAML file of ranges: {uniform: [low, high]}, {log_uniform: [low, high]} or
    {choice: [a, b]} per field."""
    optuna_batch: int = setting(8, low=1)
    """Settings that Optuna chooses at a time, to be trained side by side."""
    population_interval: int = setting(0, low=0)
    """Environment steps of each agent between selections; 0: a twentieth of total_timesteps."""
    population_share: float = setting(0.25, low=0, high=0.5)
    """Share of the population that each selection replaces by copies of as many of the best."""
    population_factor: float = setting(1.25, low=1)
    """Factor that numbers of a copied agent are multiplied by, divided by, or neither."""
    select_by: Literal["last", "best", "mean"] = "last"
    """An agent's score: the return of its last evaluation, its best, or their mean, which is the
    area under its curve."""
    memory_gb: float = setting(0.0, low=0)
    """Memory to fill with agents; 0: four fifths of what is free. More agents than fit are
    trained one batch after another."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Train groups of one structure here, on a Ray cluster, or as SLURM jobs."""
    launcher_options: dict[str, Scalar] = field(default_factory=dict)
    """Options of ray.remote or of submitit's executor, as name value pairs."""
    clobber: bool = False
    """Delete the folder of an earlier sweep of this name and start from scratch."""


@dataclass(frozen=True)
class ExportFlags:
    """Write a trained agent's deterministic policy as one file, and check that file.

    Examples:
      purejaxppo export --run runs/hopper-s0 --to policy.onnx
      purejaxppo export --run runs/hopper-s0 --to policy.npz --checkpoint last
    """

    run: str = ""
    """The run's folder, as made by `purejaxppo train`."""
    to: str = ""
    """The file to write: .onnx, or .npz for the player in numpy."""
    checkpoint: str = "best"
    """best, last, or the environment steps of a save."""
    member: int = setting(-1, low=-1)
    """Of a run of several seeds, the one to take: 0 is the first."""
    batch: int = setting(1, low=1)
    """Observations that the file takes at once."""
    force: bool = False
    """Replace a file that is there already."""


FLAGS: dict[str, type] = {
    "train": TrainFlags,
    "evaluate": EvaluateFlags,
    "sweep": SweepFlags,
    "export": ExportFlags,
}
"""By command. `list` and `init` take words instead of flags."""
