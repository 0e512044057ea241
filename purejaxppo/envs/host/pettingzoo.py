"""`pettingzoo/`: PettingZoo's parallel environments in worker processes behind callbacks.

Names: `pettingzoo/mpe2.simple_spread_v3` is a module with a function `parallel_env`,
`pettingzoo/package.module:Class` or `pettingzoo/path/to/file.py:function` a class or function that
creates an environment, `pettingzoo/sisl/pursuit-v5` an id of PettingZoo's registry. Each
multi-agent environment steps in a worker, and each of its agents is a row.
"""

import importlib.util
import pkgutil
import re

from purejaxppo.config.references import absolute
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.gymnasium import POOL_OPTIONS, Workers, pickled_object
from purejaxppo.envs.options import Option, split, with_defaults
from purejaxppo.envs.teams import GLOBAL_STATE
from purejaxppo.envs.worlds import GLOBAL_STATE_OPTION, MultiAgentEnv, count_worlds

OPTIONS = {
    **POOL_OPTIONS,
    "mask": Option(False, "Read the `action_mask` in each agent's info."),
    GLOBAL_STATE: GLOBAL_STATE_OPTION,
}
"""Options of this adapter. All other options go to the environment."""


def task_names() -> list[str]:
    """Return mpe2's modules if installed, and registered ids. Other modules and files also work."""
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
    """Create multi-agent environments with `num_envs` rows.

    Args:
        name: a module, `package.module:Class`, `file.py:function` or a registered id.
        config: options other than `OPTIONS` are keyword arguments of the environment.
        num_envs: N, over all agents.
        seed: seed of the global random generators in worker processes. Environments are seeded from
            the key.
        evaluation: use other random streams; N is rounded up to whole environments.
        render: frames will be requested; creates one environment in this process.
        first: index of the first row in a larger batch.

    Raises:
        ValueError: an unknown environment, unsupported spaces, or N is not a multiple of the number
            of agents.
        SimulatorError: the environment fails when it is created.
    """
    from purejaxppo.envs.host.workers.pettingzoo_world import PettingZooSpec

    ours_given, env_options = split(config.options, OPTIONS)
    options = with_defaults(ours_given, OPTIONS)
    pickled = pickled_object(config.name)
    maker = PettingZooSpec(
        name if pickled else absolute(name),
        env_options,
        config.max_episode_steps,
        mask=options["mask"],
        global_state=options[GLOBAL_STATE],
        pickled=pickled,
    )
    workers = Workers(config.name, maker, options, config.metrics)
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
    free_options=POOL_OPTIONS,
    workers_option="num_workers",
    more_options="keyword arguments for the environment's class or function",
)
