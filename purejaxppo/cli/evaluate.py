"""The command `purejaxppo evaluate --run runs/hopper-s0`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from purejaxppo.cli import parser
from purejaxppo.cli.flags import EvaluateFlags
from purejaxppo.config.hints import format_number, short_path
from purejaxppo.config.plain import user_path
from purejaxppo.envs import registry
from purejaxppo.parallel.settings import AHEAD_OF_TIME, check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.evaluation import evaluate
from purejaxppo.runs.folder import imports
from purejaxppo.runs.recording import draw
from purejaxppo.runs.tournament import rate
from purejaxppo.video import video


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser.run(lambda words: run(*parser.parse(EvaluateFlags, words, "env")), args)


def check(command: EvaluateFlags, changes: Mapping[str, Any]) -> None:
    """Check the flags, with the settings of the environment that they change.

    Raises:
        ValueError: a flag is missing, or flags contradict each other.
    """
    if not command.run:
        raise ValueError("--run is missing. Give a run folder, as in --run runs/hopper-s0.")
    if command.render:
        video.check_target(user_path(command.render))
    if command.stochastic and command.deterministic:
        raise ValueError("--stochastic and --deterministic exclude each other. Use one of them.")
    has_checkpoint = command.checkpoint != EvaluateFlags.checkpoint
    if command.elo and (command.deterministic or command.render or has_checkpoint):
        raise ValueError(
            "--elo rates all checkpoints of a run with sampled actions. Remove --checkpoint, "
            "--deterministic and --render."
        )
    if command.elo and changes:
        raise ValueError(
            f"--elo does not support settings of the environment. Remove --{next(iter(changes))}."
        )
    if command.elo and command.episodes % 2:
        raise ValueError(
            f"--episodes = {command.episodes}: must be even with --elo, because each player begins "
            f"half of the games."
        )


def run(command: EvaluateFlags, changes: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Evaluate a run, print the result, and write a video if --render is given.

    Args:
        command: the flags.
        changes: settings of the environment to change, by dotted name.
    """
    check(command, changes)
    # Custom code may change the current folder.
    run_dir, target = (user_path(path).absolute() for path in (command.run, command.render))
    check_settings(AHEAD_OF_TIME)
    use_compilation_cache()
    use_cpu_cores(0)
    for line in imports(command.run):
        print(line, flush=True)
    if command.elo:
        options = {"games": command.episodes, "member": command.member, "seed": command.seed}
        print(rate(run_dir, print_line=print, **options))
        return 0
    agent = restore(run_dir, command.checkpoint)
    if command.member != -1:
        agent = agent.member(command.member, "--member")
    if command.render:
        agent.check_single("--render", command.run)
    agent = agent.with_env(**changes)
    settings = agent.config.eval
    if command.stochastic or command.deterministic:
        settings = dataclasses.replace(settings, stochastic=command.stochastic)
    after = f"{agent.trained_for} steps (--checkpoint {command.checkpoint})"
    print(f"{agent.config.env.name} after {after}, {settings.policy} policy")
    result = evaluate(
        agent, command.episodes, seed=command.seed, deterministic=not settings.stochastic
    )
    for i, member in enumerate(agent.members):
        print(f"agent {i} (seed {member.seed}): {result.member(i)}")
    print(result)
    for name, mean in result.metric_means.items():
        print(f"  {name} {format_number(mean)}")
    if not agent.conditions:  # the figure in the run folder shows the run's own environment
        report(agent, run_dir, command.seed, deterministic=not settings.stochastic)
    if command.render:
        print(f"writing a video of another episode to {command.render} ...", flush=True)
        print(draw(agent, target, seed=command.seed, deterministic=not settings.stochastic))
    return 0


def report(agent: Agent, run_dir: Path, seed: int, *, deterministic: bool) -> None:
    """Print extra metrics that the environment family defines, and save their figure.

    Do nothing if the family defines none, or for several agents.
    """
    family, _ = registry.resolve(agent.config.env)
    if agent.members or family.report is None:
        return
    env = agent.config.env
    if agent.config.network.rnn != "none" or env.obs_indices or env.wrappers:
        print("no report: it does not support recurrent policies, env.obs_indices or env.wrappers")
        return
    figure = run_dir / "report.png"
    act = agent.controller(deterministic=deterministic)
    print(family.report(registry.make_task(env), act, seed, str(figure)))
    print(f"figure: {short_path(figure)}")
