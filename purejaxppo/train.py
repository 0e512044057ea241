"""`python -m purejaxppo.train --config hopper.yaml`: train, log, save, resume."""

from purejaxppo import interrupts

if __name__ == "__main__":
    interrupts.listen()

import argparse
import dataclasses
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import tyro

from purejaxppo.config import files
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import SimulatorError
from purejaxppo.parallel import processes
from purejaxppo.runs import cli, imitation
from purejaxppo.runs.console import Console, Stopped, fail
from purejaxppo.runs.folder import CONFIG, imports
from purejaxppo.runs.programs import resolve_shards
from purejaxppo.runs.session import (
    INTERRUPTED,
    continue_config,
    execute,
    finished,
    programs_of,
    run_name,
    spread,
    start_jax,
    writing,
)

DESCRIPTION = """Train PPO.

The config is read first, flags replace single fields of it. Running the same command again
resumes; Ctrl-C saves and ends."""


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags besides the config's own fields."""

    config: str = "hopper.yaml"
    """A YAML file, or the bare name of a config that comes with the library."""
    clobber: tyro.conf.FlagCreatePairsOff[bool] = False
    """Delete the run folder of an earlier run of this name and start afresh."""
    list_envs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print every environment that can be trained, and end."""
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
    return cli.parse_over_config(
        Command, args, prog="python -m purejaxppo.train", description=DESCRIPTION
    )


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    words = sys.argv[1:] if args is None else args
    try:
        place, command = start(words)
        if command.list_envs:
            return list_envs()
        if command.list_configs:
            return list_configs()
        code = train(command, place)
    except processes.Agreed as error:
        code = 2 if error.quiet else fail(error)
    except (ValueError, OSError, SimulatorError, Stopped) as error:
        return processes.leave(fail(error))
    except KeyboardInterrupt:
        return processes.leave(fail(INTERRUPTED, code=130))
    except Exception:
        if not processes.several():
            raise
        traceback.print_exc()
        processes.leave(1)
    processes.finish()
    return code


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
        return processes.place_of(place, flags.coordinator, flags.num_processes, flags.process_id)

    def prepare() -> Command:
        return dataclasses.replace(parse(words), process_id=-1)

    return processes.start(
        processes.launched(os.environ), find, prepare, seconds=flags.wait_seconds
    )


def list_envs() -> int:
    """Prints one environment per line."""
    for family, entry in registry.FAMILIES.items():
        try:
            for name in registry.task_names(family):
                print(f"{name:42} {entry.about}")
        except ValueError as error:
            print(f"{family + '/...':42} {error}")
    return 0


def list_configs() -> int:
    """Prints one config per line, with its first comment."""
    for name, comment in files.list_configs().items():
        print(f"{name + '.yaml':32} {comment}")
    return 0


def train(command: Command, place: processes.Place = processes.ALONE) -> int:
    """Trains the config of `command` in its run folder, from scratch or from the last save."""
    config = Config(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Config)})
    if config.logging.wandb_project and importlib.util.find_spec("wandb") is None:
        raise ValueError("wandb is not installed: pip install 'purejaxppo[wandb]'")
    run_dir = Path(config.run_dir or f"runs/{run_name(command.config, config)}")
    notes: list[str] = []
    with processes.together():
        if not command.clobber:
            config, notes = continue_config(config, run_dir)
            for line in imports(run_dir) * (place.index == 0):
                print(line, flush=True)
        devices = start_jax(config, place)
        config = resolve_shards(config, len(devices))
        programs, run_kind = programs_of(config, spread(devices, config))
        if config.imitate.teacher and not (run_dir / CONFIG).is_file():
            imitation.load_teacher(config, programs.parts.policy)
    with writing(config, run_dir, programs.members, clobber=command.clobber):
        steps = config.num_updates * programs.steps_per_update
        # mpirun gives its processes terminals, even if its own output goes to a file.
        console = Console(steps, quiet=not processes.is_main(), lines=processes.several())
        run = run_kind(programs, run_dir, console)
        if finished(run, notes):
            run.checkpoints.close()
            return 0
        for note in notes:
            console.say(note)
        return execute(run)


if __name__ == "__main__":
    sys.exit(main())
