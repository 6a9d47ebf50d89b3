#!/bin/sh
# Whether node $NODE answers and is active; run by with_ros.sh in the container. 0: it is; 1: it is not (as Docker wants).
node=${NODE:-/multi_dnn}
state=$(ros2 lifecycle get --no-daemon --spin-time 2 "$node" 2>&1) || { echo "$node does not answer: $state"; exit 1; }
echo "$node: $state"
case $state in
    "active "*) exit 0 ;;
    *) exit 1 ;;
esac
