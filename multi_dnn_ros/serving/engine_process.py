"""Starts an engine process, exchanges messages with it, ends it, and determines the cause of its end."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from multi_dnn_ros.serving import default_build, wire
from multi_dnn_ros.serving.channel import Channel
from multi_dnn_ros.serving.child_processes import LineReader, kill_group, kill_session
from multi_dnn_ros.serving.oom_kills import oom_kills
from multi_dnn_ros.serving.process_arguments import Pool, ProcessArguments
from multi_dnn_ros.serving.process_end import End, cause_of
from multi_dnn_ros.serving.shared_status import SharedStatus, create_status_memory
from multi_dnn_ros.serving.slots import SlotPool

log = logging.getLogger(__name__)

#: Uses the parent's import path, so that classes pickled by the parent can be imported.
#: Ties the process to the parent first, which may end during the imports: they take a second on a busy machine.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from multi_dnn_ros.common import parent_process; "
    "parent_process.die_with_parent(int(sys.argv[2])); parent_process.ignore_stop_signals(); "
    "from multi_dnn_ros.serving.engine_main import main; main(sys.argv[1])"
)
#: A process that receives nothing for this time hangs: the socket buffers offers for more frames than there are slots.
_SEND_TIMEOUT_S = 1.0
#: Maximum time from the end of the connection to the end of the process.
_EXIT_S = 2.0
_TAIL_LINES = 30


class EngineProcess:
    """Starts the process. Raises OSError if that fails.

    label: for messages. dnns: DNNs that it may be configured for. pools: the slots of the cameras, by name.
    on_message, on_end: called in the reader thread; on_end once, after the process was reaped and its last messages
    were delivered. modules: what the process imports before it is ready.
    Its stdout and stderr are copied to the stderr of this process.
    """

    def __init__(
        self,
        label: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        on_message: Callable[[EngineProcess, Any], None],
        on_end: Callable[[EngineProcess, End], None],
        modules: Sequence[str] = default_build.MODULES,
    ) -> None:
        self.label = label
        self.dnns = tuple(dnns)
        self._modules = tuple(modules)
        self._pools = tuple(Pool(pool.memory.layout, pool.fd) for pool in pools.values())
        self._on_message = on_message
        self._on_end = on_end
        self._lock = threading.Lock()
        self._killed = ""
        self._abort_cause = ""
        self._reaping = False  # from here on its process id may belong to another process
        self._reaped = threading.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        # Counts of OOM kills at the last two reports of the process.
        self._oom_kills: deque[int] = deque([oom_kills()], maxlen=2)
        started = threading.Event()
        self._failure: BaseException | None = None
        # The reader thread starts the process, because the kernel kills the process when that thread ends.
        self._reader = threading.Thread(target=self._run, args=(started,), name=f"reader {label}", daemon=True)
        self._reader.start()
        started.wait()
        if self._failure is not None:
            raise OSError(f"{label} cannot be started: {self._failure}") from self._failure

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
            if self._killed or self._reaping:
                return
            self._killed = cause
            kill_group(self.pid)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is reaped; False on timeout."""
        return self._reaped.wait(timeout_s)

    # -- the reader's thread

    def _run(self, started: threading.Event) -> None:
        try:
            self._start()
            watch = threading.Thread(target=self._watch, name=f"watch {self.label}", daemon=True)
            try:
                watch.start()
            except BaseException:  # no more threads
                self._channel.close()
                os.close(self._pid_fd)
                with self._process:
                    self._process.kill()
                raise
        except BaseException as error:
            self._failure = error
            return
        finally:
            started.set()
        self._receive()
        watch.join(_EXIT_S)
        if watch.is_alive():
            self.kill("it closed its connection and did not end")
            watch.join()
        end = self._end()
        self._channel.close()
        self.status.close()
        self._reaped.set()
        try:
            self._on_end(self, end)
        except Exception:
            log.exception("%s: handling the end of the process failed; it may not be replaced", self.label)

    def _start(self) -> None:
        status_fd = create_status_memory(self.dnns)
        ours, theirs = socket.socketpair()
        try:
            self.status = SharedStatus(self.dnns, status_fd)
            level = logging.getLogger("multi_dnn_ros").getEffectiveLevel()
            arguments = ProcessArguments(
                self.label, self.dnns, theirs.fileno(), status_fd, self._pools, self._modules, level
            )
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, arguments.to_json(), str(os.getpid()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(arguments.channel, arguments.status, *(pool.fd for pool in self._pools)),
                start_new_session=True,
            )
            self.pid = self._process.pid
            self._pid_fd = self._open_pid()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(status_fd)
        seconds, microseconds = divmod(round(_SEND_TIMEOUT_S * 1e6), 1_000_000)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, microseconds))
        self._socket = ours
        self._channel = Channel(ours)

    def _open_pid(self) -> int:
        """A file descriptor that becomes readable when the process ends."""
        try:
            return os.pidfd_open(self.pid)
        except OSError:  # no more descriptors
            with self._process:  # closes its pipe and reaps it
                self._process.kill()
            raise

    def _receive(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                return
            except Exception as error:
                self.kill(f"it sent a message that cannot be unpickled: {type(error).__name__}: {error}")
                return
            if isinstance(message, wire.Aborting):
                self._abort_cause = message.cause
            elif isinstance(message, wire.Report):  # about once a second: earlier OOM kills hit other processes
                self._oom_kills.append(oom_kills())
            try:
                self._on_message(self, message)
            except (Exception, SystemExit):  # also of the message functions of other packages
                log.exception(
                    "%s: handling message %s failed; the message is ignored", self.label, type(message).__name__
                )

    def _end(self) -> End:
        code = self._process.returncode
        return End(
            cause_of(
                code,
                self._tail,
                killed=self._killed,
                abort_cause=self._abort_cause,
                out_of_memory=oom_kills() > self._oom_kills[0],
            ),
            code if code >= 0 else None,
            -code if code < 0 else None,
            tuple(self.status.running_jobs()),
            "\n".join(self._tail),
        )

    # -- the watcher's thread

    def _watch(self) -> None:
        """Copy the output of the process; when it ends, kill its children and reap it."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        pid_fd = self._pid_fd
        lines = LineReader(self._on_line)
        try:
            poll = select.poll()
            poll.register(output, select.POLLIN)
            poll.register(pid_fd, select.POLLIN)
            ended = False
            while not ended:
                events = dict(poll.poll())
                ended = pid_fd in events
                if output in events and not lines.read(output):
                    poll.unregister(output)
        finally:
            os.close(pid_fd)
        with self._lock:
            self._reaping = True
            kill_session(self.pid)
        with suppress(OSError):  # a child that has left the session may keep the other end open
            self._socket.shutdown(socket.SHUT_RDWR)
        lines.read(output)
        lines.close()
        self._process.wait()
        self._process.stdout.close()

    def _on_line(self, line: str) -> None:
        self._tail.append(line)
        with suppress(OSError, ValueError):  # stderr may be closed
            print(f"[{self.label}] {line}", file=sys.stderr)
