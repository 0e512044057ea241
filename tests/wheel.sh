#!/usr/bin/env bash
# Tests the wheel as users install it: in a new environment, with the lock file and without it.
#
#   tests/wheel.sh .venv/bin/python     (a Python that has hatchling and uv)
#
# Takes the newest Python of 3.13, 3.12 and 3.11 that runs, trains hopper for ten seconds and evaluates it. A failure
# with the lock file is an error. A failure without it is a warning, because a new release of another package can cause it.
# All of it takes less than four minutes on two cores. The limits on time are wide enough for a machine at half that speed.
set -euo pipefail
tools=$(cd "$(dirname "${1:?the Python of the development environment}")" && pwd)/$(basename "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lock=$PWD/requirements.lock
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONPATH

# The path of the newest Python that runs. A command on PATH can be pyenv's, which fails unless a version is chosen.
newest_python() {
  local version python
  for version in 3.13 3.12 3.11; do
    export PYENV_VERSION=$version
    for python in "python$version" "$("$tools" -m uv python find "$version" 2>/dev/null)"; do
      if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
        "$python" -c 'import sys; print(sys.executable)'
        return
      fi
    done
  done
  echo "Python 3.11, 3.12 or 3.13 not found" >&2
  return 1
}

# Runs a command until `limit` seconds after the start of this script.
within() {
  timeout "$((limit > SECONDS ? limit - SECONDS : 1))" "$@"
}

# Installs the wheel into the environment $1 with the options that follow, trains and evaluates.
try() {
  local environment=$folder/$1
  shift
  within "$tools" -m uv venv --quiet --python "$python" "$environment" &&
    within "$tools" -m uv pip install --quiet --python "$environment/bin/python" "$@" "$wheel[brax,gymnax,render]" &&
    cd "$environment" &&
    within bin/python -c 'import jaxlib, sys; print("Python", sys.version.split()[0], "jaxlib", jaxlib.__version__)' &&
    within env XDG_CACHE_HOME="$environment" bin/purejaxppo train --config hopper.yaml --eval.interval 4_000_000 --callbacks "$folder/code/stop.py:Stop" --run_dir run &&
    within env XDG_CACHE_HOME="$environment" bin/purejaxppo evaluate --run run --checkpoint last --episodes 16
}

python=$(newest_python)
"$tools" -m hatchling build --target wheel --directory "$folder" >"$folder/build.log" 2>&1 || { cat "$folder/build.log" >&2; exit 1; }
wheel=$(echo "$folder"/*.whl)

mkdir "$folder/code"
cat >"$folder/code/stop.py" <<PYTHON
import time
from purejaxppo import Callback

class Stop(Callback):
    def on_start(self, context):
        self.end = time.monotonic() + 10

    def on_log(self, context):
        if time.monotonic() > self.end:
            context.stop("it has trained for ten seconds")
PYTHON

echo "The wheel with requirements.lock:"
limit=480
(try locked --constraint "$lock") || { echo "The wheel failed with requirements.lock." >&2; exit 1; }

echo "The wheel without requirements.lock:"
limit=$((SECONDS + 120))
(try unlocked) || echo "Warning: the wheel failed without requirements.lock. A new release of a dependency can be the cause." >&2
