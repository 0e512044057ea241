"""Write the table of functions of one update into docs/architecture.md, with their lines.

With --check, write nothing and fail if the page is not up to date. The sources are parsed, not
imported.
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
    "learner.py:train_step": "run one update: collect, then learn",
    "learner.py:collect": "collect a rollout of T steps of N environments",
    "rollout.py:collect": "scan over steps",
    "rollout.py:step": "act, step the environments, track returns and lengths of episodes",
    "agents/policy.py:Policy.act": "normalise observations, apply the network, sample actions",
    "learner.py:learn": "update the agent from the rollout",
    "learner.py:scale_rewards": "normalise rewards, with ppo.normalize_reward",
    "learner.py:make_batch": "compute values, advantages, targets and the units of minibatches",
    "agents/advantages.py:gae": "compute generalised advantage estimates",
    "agents/ppo.py:update_epochs": "run epochs of shuffled minibatches",
    "agents/ppo.py:gradient_step": "gather a minibatch, clip its gradient, apply or skip it",
    "learner.py:minibatch_loss": "apply the network to a minibatch, compute the loss",
    "agents/ppo.py:ppo_loss": "compute policy loss + vf_coef value loss - ent_coef entropy",
    "agents/losses.py:clipped_surrogate": "compute PPO's clipped surrogate",
    "agents/ppo.py:mean_gradient": "average the gradient over shards",
    "learner.py:update_obs_stats": "update the running statistics of observations",
}
"""Function as file:name -> description, in the order of the calls."""


def line_of(reference: str) -> int:
    """Return the line on which a function is defined.

    Raises:
        ValueError: the function does not exist.
    """
    file, _, dotted = reference.partition(":")
    node: ast.AST = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    for name in dotted.split("."):
        matches = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name
        ]
        if not matches:
            raise ValueError(f"{reference}: {file} has no {dotted}")
        node = matches[0]
    assert isinstance(node, ast.FunctionDef)
    return node.lineno


def table() -> str:
    """Return the table as Markdown."""
    rows = ["| function | where | what it does |", "| --- | --- | --- |"]
    for reference, description in WALK.items():
        file, _, name = reference.partition(":")
        rows.append(f"| `{name}` | `purejaxppo/{file}:{line_of(reference)}` | {description} |")
    files = dict.fromkeys(reference.partition(":")[0] for reference in WALK)
    sizes = [len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in files]
    total = f"These functions are in {len(files)} files with {sum(sizes)} lines in total."
    return "\n".join([*rows, "", f"{total}\n"])


def render(old: str) -> str:
    """Return the page with a new table."""
    before, _, after = old.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{after.partition(END)[2]}"


def main() -> int:
    """Write or check the page, and return the exit code."""
    return pages.run(__doc__, TARGET, render)


if __name__ == "__main__":
    sys.exit(main())
