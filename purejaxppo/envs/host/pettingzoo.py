"""`pettingzoo/`: PettingZoo's parallel environments, in worker processes behind callbacks.

`pettingzoo/mpe2.simple_spread_v3` is a module with a function `parallel_env`,
`pettingzoo/package.module:Class` and `pettingzoo/path/to/file.py:function` are a class or a
function that makes an environment, and `pettingzoo/sisl/pursuit-v5` is an id of PettingZoo's
registry. Each world steps in a worker; its agents are rows.
"""

import importlib.util
import pkgutil
import re

from purejaxppo.config.references import absolute
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.gymnasium import POOL_OPTIONS, Workers
from purejaxppo.envs.options import Option, split, with_defaults
from purejaxppo.envs.teams import GLOBAL_STATE
from purejaxppo.envs.worlds import GLOBAL_STATE_OPTION, MultiAgentEnv, count_worlds

OPTIONS = {
    **POOL_OPTIONS,
    "mask": Option(False, "Read the `action_mask` in each agent's info."),
    GLOBAL_STATE: GLOBAL_STATE_OPTION,
}
"""Options of this adapter; all others are the environment's."""


def task_names() -> list[str]:
    """Modules of mpe2, if it is installed, and registered ids; others and files work, too."""
    import pettingzoo

    spec = importlib.util.find_spec("mpe2")
    folders = spec.submodule_search_locations if spec else ()
    modules = (module.name for module in pkgutil.iter_modules(folders))
    mpe_tasks = [f"mpe2.{name}" for name in modules if re.search(r"_v\d+$", name)]
    return mpe_tasks + sorted(getattr(pettingzoo, "parallel_registry", {}))


def make(
    name: str,
    config: EnvConfig,
    num_envs: int,
    *,
    seed: int,
    evaluation: bool = False,
    render: bool = False,
    first: int = 0,
) -> MultiAgentEnv:
    """`num_envs` rows of worlds of the environment called `name`.

    Args:
        name: a module, `package.module:Class`, `file.py:function`, or a registered id.
        config: options besides `OPTIONS` are keyword arguments of the environment.
        num_envs: N, of all agents.
        seed: of the global generators of worker processes; worlds are seeded from the key.
        evaluation: other streams of these generators; N is rounded up to whole worlds.
        render: frames will be requested; one world in this process.
        first: the number that the first row has in a larger batch.

    Raises:
        ValueError: there is no such environment, its spaces are not supported, or N rows are not a
            whole number of worlds.
        SimulatorError: it fails when it is made.
    """
    from purejaxppo.envs.host.workers.pettingzoo_world import PettingZooSpec

    ours_given, env_options = split(config.options, OPTIONS)
    options = with_defaults(ours_given, OPTIONS)
    maker = PettingZooSpec(
        absolute(name),
        tuple(sorted(env_options.items())),
        config.max_episode_steps,
        mask=options["mask"],
        global_state=options[GLOBAL_STATE],
    )
    workers = Workers(config.name, maker, options)
    team = workers.info.team
    assert team is not None
    num_worlds = count_worlds(config, team.size, num_envs, evaluation=evaluation)
    first_world = first // num_envs * num_worlds
    worlds = workers.env(
        num_worlds, seed=seed, evaluation=evaluation, first=first_world, render=render
    )
    return MultiAgentEnv(worlds, team)


FAMILY = Family(
    about="multi-agent: a module, package:Class or file.py:function; runs in worker processes",
    tasks=task_names,
    make_batch=make,
    requires="pettingzoo",
    names="module",
    options=OPTIONS,
    more_options="keyword arguments of the environment",
)
