"""One engine process as the node's process sees it: started, spoken with, ended, and what it ended by."""

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
from multi_dnn_ros.serving.board import Board, board_fd
from multi_dnn_ros.serving.child_processes import Lines, kill_group, kill_session
from multi_dnn_ros.serving.oom_kills import oom_kills
from multi_dnn_ros.serving.process_end import End, cause_of
from multi_dnn_ros.serving.setup import Pool, Setup
from multi_dnn_ros.serving.slots import SlotPool

log = logging.getLogger(__name__)

#: With the parent's import path: what pickle names there can be imported here.
#: First of all it is made to end with the parent: the imports take a second on a busy machine.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from multi_dnn_ros.serving import parent; "
    "parent.die_with_parent(int(sys.argv[2])); parent.leave_stop_signals_to_parent(); "
    "from multi_dnn_ros.serving.engine_main import main; main(sys.argv[1])"
)
#: A process that takes no message for so long hangs: there is room for more frames than there are slots.
_SEND_TIMEOUT_S = 1.0
#: How long a process that has closed its connection may take to end.
_EXIT_S = 2.0
_TAIL_LINES = 30


class EngineProcess:
    """Starts the process at once; OSError when that fails.

    label: for messages. dnns: that it may be told to configure. pools: the slots of the cameras, by name.
    on_message, on_end: called in the one thread that reads what it sends; on_end once, when the process was reaped and
    its last messages were delivered. What it writes to stdout and stderr goes to our stderr. modules: what it imports
    before it answers.
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
        self._dying = ""
        self._quit = False
        self._is_over = False  # reaped, or about to be: its number may belong to another process
        self._reaped = threading.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._kills: deque[int] = deque([oom_kills()], maxlen=2)  # when it was last seen alive
        started = threading.Event()
        self._failure: BaseException | None = None
        # Started by the thread that lives as long as the process: the kernel ends it with the thread that started it.
        self._reader = threading.Thread(target=self._run, args=(started,), name=f"reader {label}", daemon=True)
        self._reader.start()
        started.wait()
        if self._failure is not None:
            raise OSError(f"{label} cannot be started: {self._failure}") from self._failure

    def send(self, message: Any) -> None:
        """Never blocks for more than a second. A process that is gone, or is killed for it, is told of by on_end."""
        if isinstance(message, wire.Quit):
            self._quit = True
        try:
            self._channel.send(message)
        except BlockingIOError:
            self.kill(f"hung: it took no message for {_SEND_TIMEOUT_S:g} s")
        except OSError:
            pass

    def kill(self, cause: str) -> None:
        """SIGKILL to the process and what it has started; `cause` becomes that of the end. The first call counts."""
        with self._lock:
            if self._killed or self._is_over:
                return
            self._killed = cause
            kill_group(self.pid)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is reaped; False when it takes longer."""
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
        self._read()
        watch.join(_EXIT_S)
        if watch.is_alive():
            self.kill("it closed its connection and did not end")
            watch.join()
        end = self._end()
        self._channel.close()
        self.board.close()
        self._reaped.set()
        try:
            self._on_end(self, end)
        except Exception:
            log.exception("%s: what was to be done at its end failed", self.label)

    def _start(self) -> None:
        board = board_fd(self.dnns)
        ours, theirs = socket.socketpair()
        try:
            self.board = Board(self.dnns, board)
            setup = Setup(self.label, self.dnns, theirs.fileno(), board, self._pools, self._modules)
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, setup.to_json(), str(os.getpid()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(setup.channel, setup.board, *(pool.fd for pool in self._pools)),
                start_new_session=True,
            )
            self.pid = self._process.pid
            self._pid_fd = self._opened()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(board)
        seconds, microseconds = divmod(round(_SEND_TIMEOUT_S * 1e6), 1_000_000)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, microseconds))
        self._socket = ours
        self._channel = wire.Channel(ours)

    def _opened(self) -> int:
        """A descriptor that tells of the end of the process."""
        try:
            return os.pidfd_open(self.pid)
        except OSError:  # no more descriptors
            with self._process:  # closes its pipe, and reaps it
                self._process.kill()
            raise

    def _read(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                return
            except Exception as error:
                self.kill(f"it sent what cannot be read: {type(error).__name__}: {error}")
                return
            if isinstance(message, wire.Dying):
                self._dying = message.cause
            elif isinstance(message, wire.Memory):  # about once a second, so that older kills are not taken for its own
                self._kills.append(oom_kills())
            try:
                self._on_message(self, message)
            except Exception:
                log.exception("%s: its message %s could not be handled", self.label, type(message).__name__)

    def _end(self) -> End:
        code = self._process.returncode
        return End(
            cause_of(
                code,
                self._tail,
                killed=self._killed,
                dying=self._dying,
                out_of_memory=oom_kills() > self._kills[0],
            ),
            code if code >= 0 else None,
            -code if code < 0 else None,
            self._quit,
            tuple(self.board.under_way()),
            "\n".join(self._tail),
        )

    # -- the watcher's thread

    def _watch(self) -> None:
        """Pass on what the process writes; when it ends, end what it has started, and reap it."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        pid_fd = self._pid_fd
        lines = Lines(self._told)
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
            self._is_over = True
            kill_session(self.pid)
        with suppress(OSError):  # also when a child that has left the session holds the other end
            self._socket.shutdown(socket.SHUT_RDWR)
        lines.read(output)
        lines.close()
        self._process.wait()
        self._process.stdout.close()

    def _told(self, line: str) -> None:
        self._tail.append(line)
        with suppress(OSError, ValueError):  # our stderr may be closed
            print(f"[{self.label}] {line}", file=sys.stderr)
