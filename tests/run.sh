#!/usr/bin/env bash
# Sets up what is missing and runs the tests on every core; arguments go to pytest: bash tests/run.sh -k attention
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/recipes/setup.sh"
setup dev,demo
cd "$root"
export OMP_NUM_THREADS=1 # a process per core already; threads on top would only get in each other's way
exec "$PYTHON" -m pytest -n auto --dist loadfile "$@" # by file: session fixtures are built once
