"""Starts Python programs as forks of a process that has imported PyTorch: a new interpreter needs 3 s of CPU time.

A node that is started so forks its engine processes, too; ``python -m fork_server run ...`` does this without a server.

The processes become children of this one, as those that subprocess starts: the server forks twice and ends the process
in between, so that the kernel hands its child to the nearest subreaper, which is this process (prctl(2)).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.util import spawnv_passfds as _spawn
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

#: What the server imports: all that nodes, engine processes and trainings need, but not rclpy, whose import starts
#: threads. After a colon, a function that it calls: what the first call imports takes longer than the rest of most
#: configurations.
MODULES = ("torch", "torchvision", "multi_dnn_ros.serving.build", "multi_dnn_ros.serving.configure",
           "multi_dnn_ros.engine.engine", "multi_dnn_ros.training.retrain", "multi_dnn_ros.models.onnx_source",
           "multi_dnn_ros.models.trace:import_export")  # fmt: skip

_PR_SET_CHILD_SUBREAPER = 36
_MAX_REQUEST = 1 << 17
_MAX_DESCRIPTORS = 64
#: Above all descriptors that a caller asks for.
_HIGH = 500
_PYTHON = sys.executable
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from fork_server import serve; serve(int(sys.argv[1]), sys.argv[2])"


class ForkServer:
    """modules: imported by the server, which is itself a fork where this process has imported them.

    forks: False starts new interpreters instead, as a GPU may need.
    """

    def __init__(self, modules: Sequence[str] = MODULES, *, forks: bool = True) -> None:
        self._forks = forks
        self._process: subprocess.Popen[bytes] | None = None
        if not forks:
            return
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if all(name.partition(":")[0] in sys.modules for name in modules) and len(os.listdir("/proc/self/task")) == 1:
            if not os.fork():
                self._socket.close()
                os.setsid()
                serve(theirs.detach(), "")
            theirs.close()
            return
        # One thread: the pools of libraries do not survive a fork.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        # The last argument is room for the arguments of the programs, which the forks write in the place of these.
        arguments = [str(theirs.fileno()), ",".join(modules), *sys.path, "-" * 4096]
        with theirs:
            self._process = subprocess.Popen(
                [_PYTHON, "-u", "-c", _PROGRAM, *arguments], pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """As subprocess.Popen, which starts whatever is not `python [-u] -c PROGRAM` or `python [-u] -m MODULE`."""
        if not self._forks:
            path = {"PYTHONPATH": os.pathsep.join(sys.path), "FORK_SERVER": "off"}
            return subprocess.Popen(arguments, **{**options, "env": {**(options.get("env") or os.environ), **path}})
        words = [word for word in arguments if word != "-u"]
        if words[0] != _PYTHON or words[1] not in ("-c", "-m") or options.get("preexec_fn") is not None:
            return subprocess.Popen(arguments, **options)
        if words[2:4] == ["multi_dnn_ros.cli.main", "run"]:
            words[2] = __name__
        return _Forked(self._start, words, **options)

    def run(self, arguments: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with captured text, which is all that our modules ask for."""
        asked = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        options = {name: value for name, value in options.items() if name not in ("capture_output", "check")}
        with self.popen(arguments, **{**options, **asked}) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def spawn(self, path: bytes, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        """As multiprocessing.util.spawnv_passfds, which starts whatever is not a process of the method spawn."""
        words = [os.fsdecode(word) for word in arguments]
        if not self._forks or "--multiprocessing-fork" not in words:
            return int(_spawn(path, arguments, descriptors))
        targets = [0, 1, 2, *descriptors]
        at = words.index("-c")
        return self._start(_request([_PYTHON, *words[at:]], targets), targets)

    @property
    def subprocess(self) -> SimpleNamespace:
        """For a module's `subprocess`; its `run` captures text."""
        return SimpleNamespace(**{**vars(subprocess), "Popen": self.popen, "run": self.run})

    def _start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        libc = ctypes.CDLL(None)
        with self._lock:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [pickle.dumps(request)], descriptors)
                answer = self._socket.recv(32)
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise OSError("the fork server has ended; its stderr says why")
        return int(answer)

    def close(self) -> None:
        """End the server; processes that it has started live on."""
        if self._forks:
            self._socket.close()
        if self._process is not None:
            self._process.wait()


def install() -> None:
    """Make the engine processes of this process forks of a server of its own."""
    from multi_dnn_ros.serving import engine_process

    if os.environ.get("FORK_SERVER") != "off":
        engine_process.subprocess = ForkServer().subprocess  # type: ignore[attr-defined]


class _Forked(subprocess.Popen):
    def __init__(self, start: Callable[[dict[str, Any], list[int]], int], *arguments: Any, **options: Any) -> None:
        self._start = start
        super().__init__(*arguments, **options)

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        targets = {number: fd if fd != -1 else number for number, fd in enumerate(streams)}
        targets |= {fd: fd for fd in given["pass_fds"]}
        request = _request(
            list(map(str, given["args"])), list(targets), given["env"], given["cwd"], given["start_new_session"]
        )
        self.pid = self._start(request, list(targets.values()))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))


def _request(
    arguments: list[str],
    descriptors: list[int],
    environment: Mapping[str, str] | None = None,
    folder: Any = None,
    new_session: bool = False,
) -> dict[str, Any]:
    return {
        "parent": os.getpid(),
        "arguments": arguments,
        "descriptors": descriptors,
        "environment": dict(environment or os.environ),
        "folder": str(folder or Path.cwd()),
        "new_session": new_session,
    }


def serve(descriptor: int, modules: str) -> NoReturn:
    """The server's program, in which each fork executes the program that it was started for."""
    with contextlib.suppress(ImportError):
        import tqdm

        tqdm.tqdm.monitor_interval = 0  # otherwise torch.export's progress bar starts a thread
    for name in filter(None, modules.split(",")):
        module, _, function = name.partition(":")
        found = importlib.import_module(module)
        if function:
            getattr(found, function)()
    # A collection in a fork would traverse all this, and copy its pages.
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST, _MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the other threads"
        if between := os.fork():
            os.waitpid(between, 0)
            for one in descriptors:
                os.close(one)
            continue
        if os.fork():
            os._exit(0)
        request = pickle.loads(message)  # noqa: S301, sent by this process's own tests
        _prepare(request, connection, descriptors)
        _run(request["arguments"])


def _prepare(request: dict[str, Any], connection: socket.socket, descriptors: list[int]) -> None:
    while os.getppid() != request["parent"]:
        time.sleep(0.0005)
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _HIGH) for one in (connection.fileno(), *descriptors)]
    for one in (connection.detach(), *descriptors):
        os.close(one)
    for source, target in zip(high[1:], request["descriptors"], strict=True):
        os.dup2(source, target)
        os.close(source)
    if request["new_session"]:
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show(request["arguments"])
    with socket.socket(fileno=high[0]) as answer:
        answer.send(str(os.getpid()).encode())


def _show(arguments: Sequence[str]) -> None:
    """Overwrite the arguments that /proc shows for this process."""
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    text = "\0".join(arguments).encode()[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _run(arguments: Sequence[str]) -> NoReturn:
    """As `python -u -c PROGRAM ...` or `python -u -m MODULE ...`, and then as the end of an interpreter."""
    how, program = arguments[1:3]
    sys.argv[:] = ["-c", *arguments[3:]]
    sys.path.insert(0, "" if how == "-c" else str(Path.cwd()))
    code: Any = 0
    try:
        if how == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> int:
    """The command `multi-dnn`."""
    from multi_dnn_ros.cli.main import main as command

    install()
    return command()


if __name__ == "__main__":
    sys.exit(main())
