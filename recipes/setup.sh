# Sourced by every run.sh: finds a Python, installs the toolkit into .venv where it is missing, reports the time.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
#   setup demo                    # extras, separated by commas; sets PYTHON
#   say "making the corpus"       # a headline with the time since the start
#   asr train recipe.yaml         # the command of this installation, whatever PATH says
#
# Needs bash 3.2 or newer. Works from any directory, and in paths with spaces.

_setup_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
    printf '\n[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2
}

# Prints the path of a Python >= 3.10.
base_python() {
    local name
    for name in "${PYTHON:-}" python3 python python3.13 python3.12 python3.11 python3.10 python3.14; do
        if [ -n "$name" ] && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "error: no Python >= 3.10 on PATH; install one, or name it: PYTHON=/path/to/python bash $0" >&2
    return 1
}

# _has_asr PYTHON EXTRAS: is the toolkit importable there, with the packages of these extras?
_has_asr() {
    # From the root folder: inside the checkout, `import asr` works without being installed.
    (cd / && "$1" - "$2") >/dev/null 2>&1 <<'PYTHON'
import importlib.metadata as metadata, re, sys

import asr.cli.main

for requirement in metadata.requires("asr") or []:
    extra = re.search(r"""extra == ['"]([\w-]+)['"]""", requirement)
    if not extra or extra[1] in sys.argv[1].split(","):
        metadata.version(re.match(r"[\w.-]+", requirement)[0])
PYTHON
}

# setup EXTRAS: sets PYTHON to an interpreter that has the toolkit; installs it into .venv where there is none.
setup() {
    local extras=${1:-} candidate base venv=$_setup_root/.venv
    for candidate in "$venv/bin/python" "$venv/Scripts/python.exe" "${PYTHON:-}" python3 python; do
        if [ -n "$candidate" ] && _has_asr "$candidate" "$extras"; then
            PYTHON=$(command -v "$candidate")
            return
        fi
    done
    base=$(base_python) || return 1
    if [ ! -x "$venv/bin/python" ] && [ ! -x "$venv/Scripts/python.exe" ]; then
        say "making $venv with $("$base" --version)"
        "$base" -m venv "$venv" || {
            echo "error: $base cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2
            return 1
        }
    fi
    PYTHON=$venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=$venv/Scripts/python.exe
    say "installing the toolkit into $venv"
    if [ "$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null &&
        ! "$PYTHON" -c 'import torch, torchaudio' 2>/dev/null; then
        echo "PyPI's torch for Linux brings some 5 GB of CUDA. To do without, stop here and first run" >&2
        echo "  '$PYTHON' -m pip install torch torchaudio --index-url https://download.pytorch.org/whl/cpu" >&2
    fi
    (cd "$_setup_root" && "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}") ||
        return 1
    _has_asr "$PYTHON" "$extras" || {
        echo "error: the toolkit was installed but cannot be imported: '$PYTHON' -c 'import asr.cli.main' says why" >&2
        return 1
    }
}

asr() {
    "$PYTHON" -m asr "$@"
}
