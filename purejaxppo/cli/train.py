"""The command `purejaxppo train --config hopper.yaml`."""

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
from purejaxppo.config.plain import user_path
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
    """Parse the command line and its config.

    Raises:
        ValueError: a flag or a value is invalid, or the task is missing.
    """
    parsed = parser.parse_over_config(TrainFlags, words)
    if not (parsed.flags.list_envs or parsed.flags.list_configs):
        parser.check_task(parsed.config)
    return parsed


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
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
    """Return the argument after --list_envs; empty if it is missing."""
    for i, word in enumerate(words):
        flag, _, family = word.partition("=")
        if flag.replace("-", "_") == "__list_envs":
            family = family or next(iter(words[i + 1 :]), "")
            return "" if family.startswith("-") or family in ("true", "false") else family
    return ""


def start(words: Sequence[str]) -> tuple[places.Place, Parsed[TrainFlags]]:
    """Parse the command line. If the run has several processes, start JAX's distributed runtime."""
    parsed = parse(words)
    flags, config = parsed
    address = flags.coordinator, flags.num_processes, flags.process_id
    place = places.place_of(os.environ, *address, devices=config.devices)
    check_settings(IN_RUNS)  # in each process, because each has its own settings of JAX
    if place.count > 1:
        places.start(place, flags.wait_seconds)
    return place, parsed


def train(parsed: Parsed[TrainFlags], place: places.Place = places.ALONE) -> int:
    """Train a config in its run folder, from scratch or from the last checkpoint."""
    flags, config = parsed
    relative_dir = user_path(config.run_dir or f"runs/{run_name(flags.config, config)}")
    run_dir = relative_dir.absolute()  # custom code may change the current folder
    code = session.train(config, relative_dir, clobber=flags.clobber, place=place)
    if flags.video and not code and processes.is_main():
        print("writing a video of one episode ...", flush=True)
        print(write_video(run_dir), flush=True)
    return code


def write_video(run_dir: Path) -> str:
    """Write a video of the (first) best agent. Return a line with the path or the error."""
    try:
        if processes.is_distributed():
            raise ValueError(
                "it is not supported with several processes. Use purejaxppo evaluate --render."
            )
        video.check_target(run_dir / VIDEO)
        agent = restore(run_dir)
        agent = agent.member(0) if agent.members else agent
        return recording.draw(agent, run_dir / VIDEO)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return f"no video: {error}"
