"""`purejaxppo train --config hopper.yaml`: train, log, save, resume."""

import argparse
import dataclasses
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import jax
import tyro

from purejaxppo.commands import list as listing
from purejaxppo.config.schema import Config
from purejaxppo.envs.host.errors import SimulatorError
from purejaxppo.parallel import meeting, places, processes
from purejaxppo.parallel.settings import IN_RUNS, check_settings
from purejaxppo.pictures import video
from purejaxppo.runs import cli, recording, session
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.console import Stopped, fail
from purejaxppo.runs.folder import FILM
from purejaxppo.runs.session import INTERRUPTED, run_name

DESCRIPTION = """Train PPO.

A config is read first, flags replace single fields of it. Running the same command again resumes;
Ctrl-C saves and ends."""
EXAMPLES = (
    "purejaxppo train --config hopper.yaml",
    "purejaxppo train --env.name gymnax/CartPole-v1 --total_timesteps 500_000",
    "purejaxppo train --config cartpole.yaml --seed 3 --ppo.learning_rate 1e-3",
    "purejaxppo train --config cartpole.yaml --num_seeds 8 --network.hidden 128 128",
    "purejaxppo train --config playground/CheetahRun",
    "purejaxppo train --config cartpole_hidden.yaml --network.rnn lstm --film",
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags besides the config's own fields."""

    config: str = ""
    """A YAML file, the bare name of a config that comes with the library, or playground/TASK for
    the settings that Playground tuned; empty: defaults."""
    clobber: tyro.conf.FlagCreatePairsOff[bool] = False
    """Delete the run folder of an earlier run of this name and start afresh."""
    film: tyro.conf.FlagCreatePairsOff[bool] = False
    """Draw an episode of the best agent at the end, into film.mp4 in the run's folder."""
    list_envs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the families of environments, or with the name of one behind it its tasks, and end."""
    list_configs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the configs that come with the library, and end."""
    coordinator: str = ""
    """HOST:PORT at which process 0 of several can be reached; empty: as mpirun or srun says."""
    num_processes: int = 0
    """Processes that train together; 0: as many as mpirun or srun started, else one."""
    process_id: int = -1
    """This process's number, from 0; -1: as mpirun or srun says."""
    wait_seconds: float = 120.0
    """Seconds that processes wait for each other when they start."""


@dataclasses.dataclass(frozen=True)
class Command(Config, Flags):
    """A config, and the flags of its training."""


def parse(args: Sequence[str]) -> Command:
    """Parses the command line over its config file.

    Raises:
        ValueError: one sentence.
        SystemExit: --help.
    """
    command = cli.parse_over_config(
        Command, args, prog="purejaxppo train", description=DESCRIPTION, examples=EXAMPLES
    )
    if not (command.list_envs or command.list_configs):
        cli.check_task(command)
    return command


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    words = sys.argv[1:] if args is None else args
    try:
        if family := listed_family(words):
            return listing.list_envs(family)
        place, command = start(words)
        if command.list_envs:
            return listing.list_envs()
        if command.list_configs:
            return listing.list_configs()
        code = train(command, place)
    except processes.DistributedError as error:
        code = 2 if error.quiet else fail(error)
    except (ValueError, OSError, SimulatorError, Stopped) as error:
        return processes.abort(fail(error))
    except KeyboardInterrupt:
        return processes.abort(fail(INTERRUPTED, code=130))
    except Exception:
        if not processes.is_distributed():
            raise
        traceback.print_exc()
        processes.abort(1)
    processes.finish()
    return code


def listed_family(words: Sequence[str]) -> str:
    """The word behind --list_envs; empty if there is none."""
    flags = [i for i, word in enumerate(words) if word.replace("-", "_") == "__list_envs"]
    behind = words[flags[0] + 1 :] if flags else []
    return behind[0] if behind and not behind[0].startswith("-") else ""


def start(words: Sequence[str]) -> tuple[processes.Place, Command]:
    """Reads the command line, and connects to the other processes if there are any."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    kinds = {"coordinator": str, "num_processes": int, "process_id": int, "wait_seconds": float}
    for name, kind in kinds.items():
        spellings = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
        peek.add_argument(*spellings, dest=name, type=kind, default=getattr(Flags, name))
    try:
        flags = peek.parse_known_args(list(words))[0]
    except argparse.ArgumentError:  # `parse` gives a better message
        flags = peek.parse_args([])

    def find(place: processes.Place) -> processes.Place:
        return places.place_of(place, flags.coordinator, flags.num_processes, flags.process_id)

    def prepare() -> Command:
        command = dataclasses.replace(parse(words), process_id=-1)
        check_settings(IN_RUNS)  # each process has its own settings of JAX
        return command

    # JAX's service would replace this process's handler of SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    return meeting.start(places.launched(os.environ), find, prepare, seconds=flags.wait_seconds)


def train(command: Command, place: processes.Place = processes.ALONE) -> int:
    """Trains the config of `command` in its run folder, from scratch or from the last save."""
    config = Config(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Config)})
    named = Path(config.run_dir or f"runs/{run_name(command.config, config)}")
    run_dir = named.absolute()  # custom code may change the current folder
    code = session.train(config, named, clobber=command.clobber, place=place)
    if command.film and not code and processes.is_main():
        print("drawing a film of one episode ...", flush=True)
        print(film(run_dir), flush=True)
    return code


def film(run_dir: Path) -> str:
    """Draws an episode of a run's best agent, of several the first; says where, or why not."""
    try:
        if processes.is_distributed():
            raise ValueError("several processes train; evaluate --render draws one of this run")
        video.check_target(run_dir / FILM)
        agent = restore(run_dir)
        agent = agent.member(0) if agent.members else agent
        return recording.draw(agent, run_dir / FILM)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return f"no film: {error}"
