"""Writes the walk through one update into docs/architecture.md, with the line of each function.

With --check it writes nothing, and fails if the page is not up to date. The sources are parsed and
not imported.
"""

import ast
import sys
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "purejaxppo"
TARGET = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- walk -->\n", "<!-- end -->"
WALK = {
    "learner.py:train_step": "one PPO iteration: collect, then learn",
    "learner.py:collect": "a rollout of T steps of N environments",
    "rollout.py:collect": "a scan of steps",
    "rollout.py:step": "act, step the environments; returns and lengths of episodes",
    "agents/policy.py:Policy.act": "normalise, apply the network, sample",
    "learner.py:learn": "an update from the rollout",
    "learner.py:scale_rewards": "rewards over the deviation of the discounted return, if asked for",
    "learner.py:make_batch": "values of the rollout, advantages, targets; rows become units",
    "agents/advantages.py:gae": "generalised advantage estimation with exact time limits",
    "agents/ppo.py:update_epochs": "epochs of shuffled minibatches",
    "agents/ppo.py:gradient_step": "gather rows, gradient, clip its norm, step; or skip",
    "learner.py:minibatch_loss": "the network on a minibatch, and its loss",
    "agents/ppo.py:ppo_loss": "policy + vf_coef value - ent_coef entropy, summed over valid rows",
    "agents/losses.py:clipped_surrogate": "PPO's objective",
    "agents/ppo.py:mean_gradient": "one sum over shards, of one vector",
    "learner.py:update_obs_stats": "the statistics of observations, last",
}
"""Function, as file:name -> what it does, in the order in which they run."""


def line_of(reference: str) -> int:
    """The line on which a function is defined.

    Raises:
        ValueError: there is none of this name.
    """
    file, _, dotted = reference.partition(":")
    node: ast.AST = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    for name in dotted.split("."):
        found = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name
        ]
        if not found:
            raise ValueError(f"{reference}: {file} has no {dotted}")
        node = found[0]
    assert isinstance(node, ast.FunctionDef)
    return node.lineno


def table() -> str:
    """The walk as Markdown."""
    rows = ["| function | where | what it does |", "| --- | --- | --- |"]
    for reference, about in WALK.items():
        file, _, name = reference.partition(":")
        rows.append(f"| `{name}` | `purejaxppo/{file}:{line_of(reference)}` | {about} |")
    files = dict.fromkeys(reference.partition(":")[0] for reference in WALK)
    sizes = [len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in files]
    return "\n".join([*rows, "", f"These are {len(files)} files of {sum(sizes)} lines in all.\n"])


def render(old: str) -> str:
    """The page with its walk replaced."""
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    return pages.run(__doc__, TARGET, render)


if __name__ == "__main__":
    sys.exit(main())
