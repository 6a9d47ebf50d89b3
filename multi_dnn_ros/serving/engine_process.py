"""Starts an engine process, exchanges messages with it, ends it, and determines the cause of its end."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.processes import EXIT_ORPHANED
from multi_dnn_ros.serving import default_build, messages
from multi_dnn_ros.serving.engine_state import EngineState, create_state_memory
from multi_dnn_ros.serving.slots import SlotPool

log = logging.getLogger(__name__)

#: Uses the parent's import path, so that classes pickled by the parent can be imported.
#: Ties the process to the parent first, which may end during the imports: they take a second on a busy machine.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from multi_dnn_ros.common.processes import die_with_parent; die_with_parent(int(sys.argv[2])); "
    # Ctrl-C, and SIGTERM of systemd, reach all processes, but the parent ends this one. Not SIG_IGN: it is inherited.
    "import signal; [signal.signal(n, lambda *_: None) for n in (signal.SIGINT, signal.SIGTERM)]; "
    "from multi_dnn_ros.serving.engine_main import main; main(int(sys.argv[3]))"
)
#: A process that receives nothing for this time hangs: the socket buffers offers for more frames than there are slots.
_SEND_TIMEOUT_S = 1.0
#: Maximum time from the end of the connection to the end of the process, and for its last output.
_EXIT_S, _OUTPUT_S = 2.0, 0.5
_TAIL_LINES, _MAX_LINE = 30, 10_000
_CUDA_ERROR = re.compile(r"(CUDA error: .*|CUDA driver error: .*)")


class EngineProcess:
    """Starts the process. Raises OSError if that fails.

    label: for messages and process lists. dnns: DNNs that it may be configured for. pools: the slots of the cameras, by
    name. on_message: called in the reader's thread, at last with Ended, once the process was reaped.
    modules: what the process imports before it is ready.
    Its stdout and stderr are copied to the stderr of this process.
    """

    def __init__(
        self,
        label: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        on_message: Callable[[Any], None],
        modules: Sequence[str] = default_build.MODULES,
    ) -> None:
        self.label = label
        self._on_message = on_message
        self._lock = threading.Lock()
        self._killed = ""
        self._abort_cause = ""
        self._reaping = False  # from here on its process id may belong to another process
        self._reaped = threading.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._oom_kills: deque[int] = deque([oom_kills()], maxlen=2)  # at the last two reports of the process
        started = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                self._start(tuple(dnns), pools, tuple(modules))
            except BaseException as error:
                failures.append(error)
                return
            finally:
                started.set()
            self._receive()

        # The reader's thread starts the process, because the kernel kills the process when that thread ends.
        threading.Thread(target=run, name=f"reader {label}", daemon=True).start()
        started.wait()
        if failures:
            raise OSError(f"{label} cannot be started: {failures[0]}") from failures[0]

    def send(self, message: Any) -> None:
        """Send a message; blocks for at most a second and never raises OSError.

        A process that receives nothing for that time is killed. Messages to a process that has ended are discarded.
        """
        try:
            self._channel.send(message)
        except BlockingIOError:
            self.kill(f"hung: it received no message for {_SEND_TIMEOUT_S:g} s")
        except OSError:
            pass

    def kill(self, cause: str) -> None:
        """Kill the process and its children. The `cause` of the first call becomes the cause of the end."""
        with self._lock:
            if not self._killed and not self._reaping:
                self._killed = cause
                _kill_group(self.pid)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is reaped; False on timeout."""
        return self._reaped.wait(timeout_s)

    def _start(self, dnns: tuple[str, ...], pools: Mapping[str, SlotPool], modules: tuple[str, ...]) -> None:
        state = create_state_memory(dnns)
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._channel = messages.Channel(ours)
        try:
            self.state = EngineState(dnns, state)
            descriptors = [theirs.fileno(), state, *(pool.fd for pool in pools.values())]
            arguments = [self.label, str(os.getpid()), str(theirs.fileno()), *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,
            )
            self.pid = self._process.pid
            self._output = threading.Thread(target=self._copy_output, name=f"output {self.label}", daemon=True)
            try:
                self._output.start()
                threading.Thread(target=self._wait_for_end, name=f"watch {self.label}", daemon=True).start()
            except BaseException:  # no more threads
                with self._process:
                    self._process.kill()
                raise
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(state)
        seconds, microseconds = divmod(round(_SEND_TIMEOUT_S * 1e6), 1_000_000)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, microseconds))
        level = logging.getLogger("multi_dnn_ros").getEffectiveLevel()
        layouts = tuple((pool.memory.layout, pool.fd) for pool in pools.values())
        self.send(messages.Begin(dnns, state, layouts, modules, level))

    # -- the reader's thread

    def _receive(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                break
            except Exception as error:
                self.kill(f"it sent a message that cannot be unpickled: {type(error).__name__}: {error}")
                break
            if isinstance(message, messages.Aborting):
                self._abort_cause = message.cause
            elif isinstance(message, messages.Report):  # about once a second: earlier OOM kills hit other processes
                self._oom_kills.append(oom_kills())
            self._pass_on(message)
        if not self._reaped.wait(_EXIT_S):
            self.kill("it closed its connection and did not end")
            self._reaped.wait()
        out_of_memory = oom_kills() > self._oom_kills[0]
        cause = _cause_of(self._process.returncode, self._tail, self._killed, self._abort_cause, out_of_memory)
        self._channel.close()
        self._pass_on(messages.Ended(cause, "\n".join(self._tail)))
        self.state.close()

    def _pass_on(self, message: Any) -> None:
        try:
            self._on_message(message)
        except (Exception, SystemExit):  # also of the message functions of other packages
            log.exception("%s: handling message %s failed; it is ignored", self.label, type(message).__name__)

    # -- the other threads

    def _wait_for_end(self) -> None:
        """When the process ends, kill its children and reap it."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._reaping = True
            _kill_group(self.pid)
        with suppress(OSError):  # a child that has left the group may keep the other end open
            self._socket.shutdown(socket.SHUT_RDWR)
        self._output.join(_OUTPUT_S)
        self._process.wait()
        self._reaped.set()

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(_MAX_LINE):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                self._tail.append(text)
                with suppress(OSError, ValueError):  # stderr may be closed
                    print(f"[{self.label}] {text}", file=sys.stderr)


def oom_kills() -> int:
    """A count that increases with each kill of the kernel's out-of-memory killer on this machine or in this process's
    control group. It is 0 where the kernel or the container does not report them.
    """
    files = [Path("/proc/vmstat")]
    with suppress(OSError):
        groups = re.findall(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        files += [Path("/sys/fs/cgroup", group, "memory.events") for group in groups]
    count = 0
    for file in files:
        with suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            count += int(found[1]) if found else 0
    return count


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _cause_of(code: int, output: Sequence[str], killed: str, abort_cause: str, out_of_memory: bool) -> str:
    """Why a process ended.

    code: its exit code; negative: the signal that killed it. output: the last lines that it wrote. killed: why the
    node's process killed it, or empty. abort_cause: the cause that it sent before it ended itself, or empty.
    out_of_memory: whether the kernel's out-of-memory killer has killed a process recently.
    """
    if killed and code == -signal.SIGKILL:
        return killed
    if abort_cause:
        return abort_cause
    if out_of_memory and code == -signal.SIGKILL:
        return "killed by the kernel's out-of-memory killer"
    how = f"exited with code {code}"
    if code < 0:
        how = f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
    if code == EXIT_ORPHANED:
        return f"{how}: it lost the connection to the node's process"
    # libtorch writes these lines before it aborts the process.
    errors = [found for line in output for found in _CUDA_ERROR.findall(line)]
    if code and errors:
        return f"{errors[-1].strip()} ({how})"
    return f"{how}: {output[-1]}" if code > 0 and output else how
