"""Training started by two torchrun agents, as on two machines, one of which is killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn
from waiting import until

from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.models.sources import load_network

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]

_EPOCHS = 400
_PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported network for one image of 16x16 at a time, with two classes."""
    path = tmp_path_factory.mktemp("model") / "in.pt2"
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    ).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Agents:
    """Starts agents, each with its own log; `kill` ends all of them with their processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, port: int, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"agent{len(self.started)}.log").open("wb") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1",
                 # A killed agent can be replaced after three missing heartbeats: after 6 s instead of 15 s.
                 "--rdzv-conf", "keep_alive_interval=2",
                 "--max-restarts", "3", "-m", "multi_dnn_ros.cli.main", *arguments],
                stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                     # PyTorch 2.11 otherwise gives a replaced agent no address: "wait timeout ... MASTER_ADDR".
                     "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            )  # fmt: skip
        self.started.append(agent)
        return agent

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("agent*.log")))

    def kill(self) -> None:
        for agent in self.started:
            if agent.poll() is None:
                for process in [*psutil.Process(agent.pid).children(recursive=True), agent]:
                    process.kill()
                agent.wait()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    started = Agents(tmp_path)
    yield started
    started.kill()


@pytest.fixture(scope="module")
def undisturbed(model: Path, colours: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the weights that two agents train without interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    agents, port = Agents(folder), free_port()
    arguments = training(model, folder / "out.pt2", colours, folder / "run.ckpt")
    try:
        pair = [agents.start(port, arguments) for _ in range(2)]
        assert [agent.wait(_PATIENCE_S) for agent in pair] == [0, 0], agents.logs()
    finally:
        agents.kill()
    return digest(folder / "out.pt2")


def training(model: Path, output: Path, data: Path, checkpoint: Path) -> list[str]:
    return ["retrain", str(model), "--output", str(output), "--data", f"classes:{data}", "--device", "cpu",
            "--decoder", "classification", "--batch-size", "7", "--lr", "0.01", "--epochs", str(_EPOCHS),
            "--checkpoint", str(checkpoint)]  # fmt: skip


def digest(path: Path) -> str:
    return weights_digest(load_network(str(path)).module.state_dict())


@pytest.mark.parametrize("killed", ["the second agent", "the agent that holds the rendezvous"])
def test_an_agent_is_killed_and_started_again(
    colours: Path, model: Path, undisturbed: str, agents: Agents, tmp_path: Path, killed: str
) -> None:
    """If the second agent is killed, the first waits for its replacement. If the first is, both are started again."""
    port, checkpoint = free_port(), tmp_path / "resumed.ckpt"
    arguments = training(model, tmp_path / "resumed.pt2", colours, checkpoint)
    first = agents.start(port, arguments)
    # The agent that binds the port holds the rendezvous.
    until(lambda: listens(port), f"listening at {port}", _PATIENCE_S, agents.logs)
    second = agents.start(port, arguments)
    until(checkpoint.exists, "the first checkpoint", _PATIENCE_S, agents.logs)
    victim = second if killed == "the second agent" else first
    (worker,) = psutil.Process(victim.pid).children()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    until(lambda: not worker.is_running(), "the end of the process without an agent", _PATIENCE_S, agents.logs)
    assert not (tmp_path / "resumed.pt2").exists()
    if victim is second:
        # The first agent notices it by its own worker, whose collective operation fails at once.
        message = "another process of this training has ended"
        until(lambda: message in agents.logs(), "the first worker's error", _PATIENCE_S, agents.logs)
        again = [first, agents.start(port, arguments)]
    else:
        # The second agent may lose the rendezvous before its worker fails, and then ends it without a message.
        assert second.wait(_PATIENCE_S) != 0
        port = free_port()
        again = [agents.start(port, arguments) for _ in range(2)]
    assert [agent.wait(_PATIENCE_S) for agent in again] == [0, 0], agents.logs()
    assert digest(tmp_path / "resumed.pt2") == undisturbed
    assert f"{checkpoint}: continues after epoch " in agents.logs()
    assert not list(tmp_path.glob("*.part"))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
