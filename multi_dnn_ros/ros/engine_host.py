"""Makes the host of the engine according to the parameter `isolation`."""

from __future__ import annotations

from collections.abc import Callable

from multi_dnn_ros.serving.host import Build, Host

#: (value of `isolation`, function that builds the pipeline; None: the default one) -> host
MakeHost = Callable[[str, "Build | None"], Host]


def make_host(isolation: str, build: Build | None) -> Host:
    """A host with engine processes (`process`), or in the process of the node (`none`), which then imports PyTorch."""
    from multi_dnn_ros.serving import default_build

    if isolation == "none":
        from multi_dnn_ros.serving.local_host import LocalHost

        return LocalHost(build or default_build.build)
    from multi_dnn_ros.serving.process_host import ProcessHost

    return ProcessHost(build or default_build.build)
