#!/usr/bin/env bash
# The Python tests against a built tree: python_tests.sh LIBXSTAGE XSTAGE [PYTEST ARGUMENTS...]
# With XSTAGE_PYTHON, else build/venv (./dev sets it up), else python3. Exit code 77: skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
export XSTAGE_LIBRARY=$1 XSTAGE_CLI=$2 PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
python=${XSTAGE_PYTHON:-build/venv/bin/python}
command -v "$python" >/dev/null || python=python3
if ! "$python" -c 'import numpy, pytest' 2>/dev/null; then
    echo "skipped: $python has no numpy or no pytest; ./dev test sets up build/venv, XSTAGE_PYTHON names another"
    exit 77
fi
# What was skipped, and why, is kept for whoever runs many tests at once.
"$python" -m pytest -q -rs -p no:cacheprovider python/tests "${@:3}" | tee "$(dirname "$1")/python_tests.log"
