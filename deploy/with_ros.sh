#!/bin/bash
# with_ros.sh COMMAND ...: runs a command in the environment of ROS 2 and of the workspace that this file is installed in.
#
# The entry point of the containers and of the systemd unit. `exec` gives the command this process: signals reach it
# directly, and systemd watches it (WATCHDOG_PID, NotifyAccess=main).
#
# ROS_SETUP: setup.bash of ROS 2; by default that of ROS_DISTRO, or of the only ROS 2 in /opt/ros.
# WORKSPACE_SETUP: setup.bash of the workspace; by default that of the installation around this file, if there is one.
set -e

fail() {
    echo "with_ros.sh: $*" >&2
    exit 78  # EX_CONFIG
}

[ $# -gt 0 ] || fail "no command; usage: with_ros.sh COMMAND ..."
if [ -z "$ROS_SETUP" ]; then
    if [ -n "$ROS_DISTRO" ]; then
        found=("/opt/ros/$ROS_DISTRO/setup.bash")
    else
        found=(/opt/ros/*/setup.bash)
    fi
    [ ${#found[@]} -eq 1 ] || fail "several ROS 2 in /opt/ros (${found[*]}): set ROS_DISTRO"
    ROS_SETUP=${found[0]}
fi
[ -f "$ROS_SETUP" ] || fail "ROS_SETUP = $ROS_SETUP: no such file; set ROS_DISTRO or ROS_SETUP"
if [ -z "$WORKSPACE_SETUP" ]; then
    # <prefix>/share/multi_dnn_ros/deploy; the prefix of colcon's isolated installation is a folder of the workspace's.
    prefix=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
    for file in "$prefix/../setup.bash" "$prefix/setup.bash"; do
        if [ -f "$file" ]; then
            WORKSPACE_SETUP=$file
            break
        fi
    done
elif [ ! -f "$WORKSPACE_SETUP" ]; then
    fail "WORKSPACE_SETUP = $WORKSPACE_SETUP: no such file"
fi
# shellcheck disable=SC1090
source "$ROS_SETUP"
if [ -n "$WORKSPACE_SETUP" ]; then
    # shellcheck disable=SC1090
    source "$WORKSPACE_SETUP"
fi
exec "$@"
