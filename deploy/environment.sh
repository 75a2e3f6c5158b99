#!/bin/sh
# Make the environment .venv from uv.lock. Needs Python >= 3.12 only; gets uv with pip if it is not there.
# PYTHON=/path/to/python3 chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."
tools=var/tools

is_new_enough() { # a name on PATH may be a shim that runs nothing, so it is asked, not believed
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

find_python() {
    set -- "${PYTHON:-}" python3.13 python3.12 python3.14 python3 python
    pyenv=${PYENV_ROOT:-$HOME/.pyenv}
    for folder in "$pyenv"/versions/3.13* "$pyenv"/versions/3.12* "$pyenv"/versions/3.14* /usr/local /opt/python/*; do
        for name in python3.13 python3.12 python3.14; do set -- "$@" "$folder/bin/$name"; done
    done
    for candidate; do
        if [ -n "$candidate" ] && is_new_enough "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "gpuyard needs Python 3.12 or newer; none was found on PATH or under $pyenv." >&2
    echo "If you have one elsewhere: make PYTHON=/path/to/python3" >&2
    exit 1
}

find_uv() { # $1: a Python
    for candidate in uv "$tools/bin/uv" "$tools/pip/bin/uv"; do
        if "$candidate" --version >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "uv is not here: getting it with pip into $tools" >&2
    if "$1" -m venv "$tools" >&2; then
        "$tools/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.9' >&2
        echo "$tools/bin/uv"
    else # Debian's Python without python3-venv
        "$1" -m pip install --quiet --disable-pip-version-check --target "$tools/pip" 'uv>=0.9' >&2
        echo "$tools/pip/bin/uv"
    fi
}

python=$(find_python)
mkdir -p "$tools"
uv=$(find_uv "$python")
echo "$("$python" --version) at $python, $("$uv" --version)"
exec "$uv" sync --frozen --all-extras --python "$python"
