"""An engine as the node's process sees it: starts it, exchanges messages with it, ends it, and says why it ended."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from multi_dnn_ros.common.processes import EXIT_ORPHANED
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import engine_main, messages
from multi_dnn_ros.serving.descriptions import EngineDescription
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.shared_memory import EngineState, SlotPool, create_state
from multi_dnn_ros.settings.schema import NodeConfig

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
#: Maximum time from the end of the connection to the end of the process.
_EXIT_S = 2.0

#: Engines and those of their messages that are not about frames, in the order of their arrival.
Events = queue.SimpleQueue[tuple["Engine", Any]]


class Engine:
    """Starts the engine, in a process of its own, which writes to the stderr of this process. Raises OSError if that
    fails.

    label: for messages and process lists. device: its name. dnns: DNNs that it may be configured for. pools: the slots
    of the cameras, by name. events: gets its messages that are not about frames, at last Ended. modules: what a process
    imports before it is ready.

    is_ready (its imports are done), config and dnns (what it is, or is being, configured for), description (once
    configured), since_ns (of that, or of retired), retired (it only finishes its frames), killed and ledger (gets its
    answers) belong to the supervisor.
    """

    def __init__(
        self,
        label: str,
        device: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        events: Events,
        modules: Sequence[str] = (),
    ) -> None:
        self.label, self.device = label, device
        self.since_ns = self.started_ns = time.monotonic_ns()
        self.is_ready = self.retired = self.killed = False
        self.config: NodeConfig | None = None
        self.dnns: tuple[str, ...] = ()
        self.description: EngineDescription | None = None
        self.ledger: Ledger | None = None
        self.pid = os.getpid()
        self._pools = pools
        self._events = events
        self._lock = threading.Lock()
        self._cause = ""  # of the first call of kill, or of the end that it has announced
        self._has_ended = False  # from here on its process id may belong to another process
        self._ended = threading.Event()
        self._oom_kills = oom_kills()
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run() -> None:
            try:
                self._open(tuple(dnns), tuple(modules))
            except BaseException as error:
                started.put(error)
                return
            started.put(None)
            self._receive()

        # The reader's thread starts the process, because the kernel kills the process when that thread ends.
        threading.Thread(target=run, name=f"reader {label}", daemon=True).start()
        if (error := started.get()) is not None:
            raise OSError(f"{label} cannot be started: {error}") from error

    def send(self, message: Any) -> None:
        """Send a message; blocks for at most a second and never raises OSError.

        A process that receives nothing for that time is killed. Messages to an engine that has ended are discarded.
        """
        try:
            self._channel.send(message)
        except BlockingIOError:
            self.kill(f"hung: it received no message for {_SEND_TIMEOUT_S:g} s")
        except messages.Disconnected:
            pass

    def kill(self, cause: str) -> None:
        """End the engine and its children. `cause`: of its end, unless it has announced one, or of an earlier call."""
        with self._lock:
            if not self._has_ended:
                self._cause = self._cause or cause
                _kill_group(self.pid)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the engine has ended; False on timeout."""
        return self._ended.wait(timeout_s)

    def fault(self, settings: NodeConfig, now_ns: int, running_since_ns: int) -> str:
        """Why it counts as hanging; empty: it does not. Loading has no time limit, and only time in which this process
        itself ran, since running_since_ns, counts: the machine may have been suspended.
        """
        if self.description is None or self.killed or self.pid == os.getpid():
            return ""

        def elapsed_s(since_ns: int) -> float:
            return (now_ns - max(since_ns, running_since_ns)) / 1e9

        silent_s = elapsed_s(max(self.state.heartbeat_ns(), self.since_ns))
        if silent_s > settings.heartbeat_timeout_s:
            return f"hung: no heartbeat for {silent_s:.1f} s (limit: {settings.heartbeat_timeout_s:g} s)"
        limit = f"takes longer than {settings.job_timeout_s:g} s (parameter job_timeout_s)"
        late = [dnn for dnn, at in self.state.running_jobs().items() if elapsed_s(at) > settings.job_timeout_s]
        if late:
            return f"hung: a job of DNN {', '.join(late)} {limit}"
        if self.retired and elapsed_s(self.since_ns) > settings.stop_timeout_s:
            return f"hung: it did not finish its frames within {settings.stop_timeout_s:g} s"
        return ""

    def memory(self) -> dict[str, int]:
        """Memory in use, by name with the unit."""
        try:
            return {"resident memory (bytes)": psutil.Process(self.pid).memory_info().rss, **self.state.gpu_memory()}
        except psutil.Error:  # it has just ended
            return {}

    def _open(self, dnns: tuple[str, ...], modules: tuple[str, ...]) -> None:
        fd = create_state(dnns)
        ours, theirs = socket.socketpair()
        self._channel = messages.Channel(ours, _SEND_TIMEOUT_S)
        try:
            self.state = EngineState(dnns, fd)
            self._start(theirs, fd, modules)
        except BaseException:
            self._channel.close()
            raise
        finally:
            os.close(fd)

    def _start(self, theirs: socket.socket, state: int, modules: tuple[str, ...]) -> None:
        with theirs:
            arguments = [self.label, str(os.getpid()), str(theirs.fileno()), *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno(), state, *(pool.fd for pool in self._pools.values())],
                start_new_session=True,
            )
        self.pid = self._process.pid
        level = logging.getLogger("multi_dnn_ros").getEffectiveLevel()
        pools = tuple((pool.layout, pool.fd) for pool in self._pools.values())
        self.send(messages.Begin(self.state.dnns, state, pools, modules, level))

    def _finish(self) -> str:
        """Wait for the end of the engine, whose connection has ended. Returns the cause."""
        timer = threading.Timer(_EXIT_S, self.kill, ("it closed its connection and did not end",))
        timer.start()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        timer.cancel()
        with self._lock:
            self._has_ended = True
            _kill_group(self.pid)  # its children
        code = self._process.wait()
        if self._cause:
            return self._cause
        how = f"exited with code {code}"
        if code < 0:
            how = f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return f"{how}; the kernel's out-of-memory killer has killed processes since it was started"
        return f"{how}: it lost the connection to the node's process" if code == EXIT_ORPHANED else how

    # -- the reader's thread

    def _receive(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except messages.Disconnected:
                break
            except Exception as error:
                self.kill(f"it sent a message that cannot be unpickled: {type(error).__name__}: {error}")
                break
            try:
                self._handle(message)
            except (Exception, SystemExit):  # also of the message functions of other packages
                log.exception("%s: handling message %s failed; it is ignored", self.label, type(message).__name__)
        cause = self._finish()
        self._channel.close()
        self.state.close()
        self._ended.set()
        self._events.put((self, messages.Ended(cause)))

    def _handle(self, message: Any) -> None:
        ledger = self.ledger
        if isinstance(message, messages.Aborting):
            self._cause = self._cause or message.cause
        if isinstance(message, logging.LogRecord):
            logging.getLogger(message.name).handle(message)
        elif not isinstance(message, (messages.FrameResult, messages.FrameDropped, Failure)):
            self._events.put((self, message))
        elif ledger is None:
            pass
        elif isinstance(message, messages.FrameResult):
            number, dnn, timing, *_ = message
            if (buffer := ledger.buffer(number, dnn, self)) is None:
                return
            try:
                output = messages.unpack(message, buffer.output(dnn))
            except (Exception, SystemExit) as error:  # unpickling may call any code of another package
                reason = f"the result cannot be unpickled: {type(error).__name__}: {error}"
                ledger.drop(number, dnn, DropReason.BAD_OUTPUT, reason, self)
            else:
                ledger.result(number, dnn, output, timing, self)
        elif isinstance(message, messages.FrameDropped):
            ledger.drop(message.number, message.dnn, message.reason, message.message, self)
        elif not self.retired:  # otherwise it must not disable a DNN that another engine has taken over
            ledger.failure(message)


class LocalEngine(Engine):
    """An engine in the node's process (`isolation: none`), for debuggers and as the baseline of benchmarks."""

    def kill(self, cause: str) -> None:
        self._cause = self._cause or cause
        self._channel.shutdown()

    def memory(self) -> dict[str, int]:
        return self.state.gpu_memory()

    def _start(self, theirs: socket.socket, state: int, modules: tuple[str, ...]) -> None:
        arguments = messages.Channel(theirs), self._pools, EngineState(self.state.dnns, state)
        self._thread = threading.Thread(target=engine_main.run_in_thread, args=arguments, name=self.label, daemon=True)
        self._thread.start()

    def _finish(self) -> str:
        self._thread.join()  # threads that hang keep the images that they refer to
        return self._cause or "its thread ended with an error"


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
