#!/bin/sh
# Usage: install.sh PYTHON VENV
# Make VENV with the pinned packages and computekit itself; safe to run again. Needs nothing but PYTHON >= 3.11.
set -eu
python=$1
venv=$2

fail() {
    echo "computekit: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || fail "no $python on the PATH; install it (Debian: apt-get install python3 python3-venv) or run make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; Python 3.11 or newer is needed: make PYTHON=python3.11"

if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    "$python" -m venv "$venv"
    pip="$venv/bin/python -m pip"
elif "$python" -c 'import venv, pip' 2>/dev/null; then
    # Debian splits ensurepip into python3-venv; a pip outside the environment can fill it as well.
    "$python" -m venv --without-pip "$venv"
    pip="$python -m pip --python $venv/bin/python"
else
    fail "$python can make no virtual environment (it lacks venv, or both ensurepip and pip); on Debian: apt-get install python3-venv"
fi

echo "computekit: installing into $venv; the first time this downloads about 2 GB" >&2
$pip install --quiet --disable-pip-version-check -r requirements/lock.txt
$pip install --quiet --disable-pip-version-check --no-deps -e .
