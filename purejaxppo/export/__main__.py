"""The command `purejaxppo export --run runs/hopper-s0 --to policy.onnx`."""

import sys

from purejaxppo.cli import begin_process, start

if __name__ == "__main__":  # before JAX is imported
    begin_process()
    sys.exit(start("export", sys.argv[1:]))

from collections.abc import Sequence

from purejaxppo.cli import parser
from purejaxppo.cli.flags import ExportFlags
from purejaxppo.config.plain import user_path
from purejaxppo.export.files import check_target, export
from purejaxppo.parallel.settings import check_settings
from purejaxppo.parallel.shards import use_compilation_cache
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.folder import imports


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser.run(lambda words: run(parser.parse(ExportFlags, words)[0]), args)


def run(command: ExportFlags) -> int:
    """Export a policy and print a summary."""
    if not command.run:
        raise ValueError("--run is missing. Give a run folder, as in --run runs/hopper-s0.")
    if not command.to:
        raise ValueError("--to is missing. Give the file to write, as in --to policy.onnx.")
    check_target(command.to, engine=command.engine, force=command.force, overwrite="--force")
    check_settings()
    use_compilation_cache()
    for line in imports(command.run):
        print(line, flush=True)
    target = user_path(command.to).absolute()  # custom code may change the current folder
    agent = restore(command.run, command.checkpoint)
    if command.member != -1:
        agent = agent.member(command.member, "--member")
    agent.check_single("--to", command.run)
    print(export(agent, target, batch=command.batch, engine=command.engine, force=command.force))
    return 0
