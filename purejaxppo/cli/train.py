"""`purejaxppo train --config hopper.yaml`: train, log, save, resume."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from purejaxppo.cli import list as listing
from purejaxppo.cli import parser
from purejaxppo.cli.flags import TrainFlags
from purejaxppo.cli.parser import Parsed
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.parallel import places, processes
from purejaxppo.parallel.settings import IN_RUNS, check_settings
from purejaxppo.runs import recording, session
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.console import Stopped, fail
from purejaxppo.runs.failures import INTERRUPTED
from purejaxppo.runs.folder import VIDEO
from purejaxppo.runs.session import run_name
from purejaxppo.video import video


def parse(words: Sequence[str]) -> Parsed[TrainFlags]:
    """Parses the command line over its config file.

    Raises:
        ValueError: one sentence.
    """
    parsed = parser.parse_over_config(TrainFlags, words)
    if not (parsed.flags.list_envs or parsed.flags.list_configs):
        parser.check_task(parsed.config)
    return parsed


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    words = sys.argv[1:] if args is None else args
    try:
        if family := listed_family(words):
            return listing.list_envs(family)
        place, parsed = start(words)
        if parsed.flags.list_envs:
            return listing.list_envs()
        if parsed.flags.list_configs:
            return listing.list_configs()
        code = train(parsed, place)
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


def start(words: Sequence[str]) -> tuple[places.Place, Parsed[TrainFlags]]:
    """Reads the command line, and starts JAX's distributed runtime for several processes."""
    parsed = parse(words)
    flags, config = parsed
    given = flags.coordinator, flags.num_processes, flags.process_id
    place = places.place_of(os.environ, *given, devices=config.devices)
    check_settings(IN_RUNS)  # each process has its own settings of JAX
    if place.count > 1:
        places.start(place, flags.wait_seconds)
    return place, parsed


def train(parsed: Parsed[TrainFlags], place: places.Place = places.ALONE) -> int:
    """Trains a config in its run folder, from scratch or from the last save."""
    flags, config = parsed
    named = Path(config.run_dir or f"runs/{run_name(flags.config, config)}")
    run_dir = named.absolute()  # custom code may change the current folder
    code = session.train(config, named, clobber=flags.clobber, place=place)
    if flags.video and not code and processes.is_main():
        print("writing a video of one episode ...", flush=True)
        print(write_video(run_dir), flush=True)
    return code


def write_video(run_dir: Path) -> str:
    """Write a video of the best agent, of several the first; return where, or why not."""
    try:
        if processes.is_distributed():
            raise ValueError("several processes train; evaluate --render draws one of this run")
        video.check_target(run_dir / VIDEO)
        agent = restore(run_dir)
        agent = agent.member(0) if agent.members else agent
        return recording.draw(agent, run_dir / VIDEO)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return f"no video: {error}"
