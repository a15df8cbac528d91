#!/bin/sh
# Finds a Python that minigpt runs on and hands over to setup_env.py. PYTHON=... names one instead.
# POSIX sh, because nothing newer may be taken for granted before there is an environment.
here=$(dirname "$0")

if [ $# -gt 0 ]; then
    echo "setup.sh takes no arguments. Type: make setup [PYTHON=/path/to/python3.12] [TORCH_INDEX=URL]" >&2
    case $1 in --help | -h) exit 0 ;; *) exit 2 ;; esac
fi

case $(uname -s) in
    MINGW* | MSYS* | CYGWIN* | Windows*)
        echo "minigpt runs on Windows through WSL: install it with 'wsl --install', clone the project inside WSL and run make there." >&2
        exit 2
        ;;
esac

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11 python
fi

found=
for python in "$@"; do
    # A pyenv shim exists for every version but only runs the chosen ones: ask, don't look.
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case $version in
        3.11 | 3.12 | 3.13) exec "$python" "$here/setup_env.py" ;;
    esac
    found="${found:+$found, }$python is Python $version"
done

wanted="minigpt needs Python 3.11, 3.12 or 3.13"
remedy="install one (apt install python3.12, brew install python@3.12, or from python.org) or name it: make setup PYTHON=/path/to/python3.12"
if [ -n "${PYTHON:-}" ]; then
    echo "$wanted; ${found:-PYTHON=$PYTHON does not run}: $remedy" >&2
else
    echo "$wanted; ${found:-no python3 was found}: $remedy" >&2
fi
exit 2
