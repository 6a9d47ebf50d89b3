"""Execution providers of ONNX Runtime: what computes a session, and how each is configured.

:data:`PROVIDERS` is the table of all of them, in the order of preference. An element of the parameter
`dnn.<dnn>.providers` names one, and for some a device of their own: `openvino:gpu`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.host import threads
from multi_dnn_ros.backends.machine_cache import Key, MachineCache
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.reporting import cpu_model

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
Made = TypeVar("Made")


@dataclass(frozen=True)
class SessionRequest:
    """What a session is configured for.

    device: PyTorch's device of its inputs and outputs. precision: value of parameter `dnn.<dnn>.precision`. threads:
    threads per operation on a CPU. stream: handle of the CUDA stream that the session computes on; 0: its own. target:
    the provider's own device ("gpu" of openvino:gpu); "": its default. cache: folder for what the provider compiles;
    None: not cached.
    """

    device: torch.device
    precision: str = "auto"
    threads: int = 1
    stream: int = 0
    target: str = ""
    cache: Path | None = None


@dataclass(frozen=True)
class Provider:
    """One execution provider.

    name, key: its name here and in ONNX Runtime. device_types: types of PyTorch's devices where inputs and outputs may
    be. precisions: values of `dnn.<dnn>.precision` that it supports. options: returns its options for a request.
    fallbacks: names of the providers for operators that it lacks; the CPU's is always the last. targets: its own
    devices that can be named. optimize: whether ONNX Runtime optimizes the session for it. compiles: whether it
    compiles the network, so that the result is cached.
    """

    name: str
    key: str
    device_types: tuple[str, ...]
    precisions: tuple[str, ...]
    options: Callable[[SessionRequest], dict[str, str]]
    fallbacks: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    optimize: bool = True
    compiles: bool = False


class ProviderError(ValueError):
    """An execution provider cannot be used; the message says which and why."""


def _tensorrt_options(request: SessionRequest) -> dict[str, str]:
    options = {"device_id": str(request.device.index or 0), "trt_fp16_enable": str(int(request.precision == "fp16"))}
    if request.cache is not None:
        folder = str(request.cache)
        options |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": folder,
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": folder,
        }
    return options | _stream_options(request)


def _cuda_options(request: SessionRequest) -> dict[str, str]:
    return {
        "device_id": str(request.device.index or 0),
        "use_tf32": str(int(request.precision != "fp32")),
        "arena_extend_strategy": "kSameAsRequested",
        **_stream_options(request),
    }


def _stream_options(request: SessionRequest) -> dict[str, str]:
    return {"user_compute_stream": str(request.stream)} if request.stream else {}


def _openvino_options(request: SessionRequest) -> dict[str, str]:
    target = (request.target or "cpu").upper()
    options = {"device_type": target, "precision": "FP32" if target == "CPU" else "ACCURACY"}
    if target == "CPU":
        options |= {"num_of_threads": str(request.threads), "num_streams": "1"}
    if request.cache is not None:
        options["cache_dir"] = str(request.cache)
    return options


#: In the order of preference.
PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(
            "tensorrt", "TensorrtExecutionProvider", ("cuda",), ("auto", "fp16"), _tensorrt_options,
            fallbacks=("cuda",), compiles=True
        ),
        Provider(
            "cuda", "CUDAExecutionProvider", ("cuda",), ("auto", "fp32", "fp16"), _cuda_options
        ),
        Provider(
            "openvino", "OpenVINOExecutionProvider", ("cpu",), ("auto", "fp32"), _openvino_options,
            targets=("cpu", "gpu", "npu"), optimize=False, compiles=True
        ),
        Provider("cpu", "CPUExecutionProvider", ("cpu",), ("auto", "fp32", "int8"), lambda request: {}),
    )
}  # fmt: skip
CPU = PROVIDERS["cpu"]

#: Cache of what providers compile.
COMPILED = MachineCache("onnx_providers", "compiled networks")


@dataclass(frozen=True)
class Choice:
    """A provider with its own device; see SessionRequest.target."""

    provider: Provider
    target: str = ""

    @property
    def text(self) -> str:
        """The provider as the parameter names it."""
        return f"{self.provider.name}:{self.target}" if self.target else self.provider.name


def available() -> tuple[str, ...]:
    """Names of the providers of the installed ONNX Runtime, which may still fail to load; (): it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return ()
    keys = onnxruntime.get_available_providers()
    return tuple(name for name, provider in PROVIDERS.items() if provider.key in keys)


def missing_provider(device_type: str) -> str:
    """Why ONNX Runtime cannot be used on a type of device, as the end of a sentence ("has ..."); "" if it can."""
    if any(device_type in PROVIDERS[name].device_types for name in available()):
        return ""
    return f"has no execution provider for {device_type}; it has {_installed()}"


def _installed() -> str:
    return f"{', '.join(available()) or 'none'} (docs/devices.md)"


def parse(text: str) -> Choice:
    """One element of the parameter `providers`. Raises ProviderError."""
    name, _, target = text.partition(":")
    provider = PROVIDERS.get(name)
    if provider is None:
        raise ProviderError(f"execution provider '{text}' is not known; allowed: {', '.join(forms())}")
    kind, _, number = target.partition(".")
    if target and (kind not in provider.targets or not (number.isdecimal() or target == kind)):
        raise ProviderError(f"execution provider '{text}': its device is '{target}'; allowed: {', '.join(forms())}")
    return Choice(provider, target)


def forms() -> tuple[str, ...]:
    """The syntax of all providers."""
    return tuple(
        provider.name + (f"[:{'|'.join(provider.targets)}[.NUMBER]]" if provider.targets else "")
        for provider in PROVIDERS.values()
    )


def first_working(
    wanted: Sequence[str],
    device: torch.device,
    precision: str,
    dnn: str,
    make: Callable[[Choice], Made],
    *,
    required: bool,
) -> Made | None:
    """What `make` returns for the first provider of :func:`candidates` for which it does not raise; None if there is
    none.

    The reason why another provider is not used is logged as a warning. required: raise ProviderError with the reasons
    instead of returning None. Out of memory is raised.
    """
    choices, reasons = candidates(wanted, device, precision)
    for reason in reasons:
        log.warning("%s: %s", dnn, reason)
    for choice in choices:
        try:
            return make(choice)
        except Exception as error:  # whatever a provider raises, the next one may work
            if is_out_of_memory(error):
                raise
            reasons.append(f"{choice.text}: {summarize_error(error)}")
            log.warning("%s does not run on %s", dnn, reasons[-1])
    if required:
        raise ProviderError(f"{dnn} cannot run on {', '.join(wanted)}: {'; '.join(reasons)}")
    return None


def candidates(wanted: Sequence[str], device: torch.device, precision: str) -> tuple[list[Choice], list[str]]:
    """The providers to try, in order, and a reason for each wanted one that is left out.

    wanted: the parameter `providers`. If it is empty, all for this type of device are tried, in the order of
    preference; those that are not installed or lack the precision are then left out without a reason.
    """
    installed = available()
    found: list[Choice] = []
    reasons: list[str] = []
    for text in wanted or PROVIDERS:
        choice = parse(text)
        provider = choice.provider
        if device.type not in provider.device_types:
            problem = f"it computes on {' and '.join(provider.device_types)}; the device is {device}"
        elif provider.name not in installed:
            problem = f"the installed ONNX Runtime was built without it; it has {_installed()}"
        elif precision not in provider.precisions:
            problem = f"it has no precision {precision}; it has {', '.join(provider.precisions)}"
        else:
            found.append(choice)
            continue
        if wanted:
            reasons.append(f"execution provider {choice.text} is not used: {problem}")
    return found, reasons


def provider_session(
    model: Any, choice: Choice, device: torch.device, *, dnn: str, precision: str = "auto", stream: int = 0
) -> Any:
    """A session for an onnx.ModelProto in standard operators; what the provider compiles is cached.

    device, precision, stream: see SessionRequest. dnn: its name, for messages. Raises ProviderError if ONNX Runtime
    leaves the provider out, and what ONNX Runtime raises.
    """
    request = SessionRequest(device, precision, threads(), stream, choice.target)
    folder = compiled_folder(model, choice, request, dnn)
    # Providers do not write their files atomically: of two identical GPUs that are configured at the same time, one
    # compiles, and the other waits and reads the result.
    with COMPILED.locked(folder.name) if folder is not None else contextlib.nullcontext():
        return _session(model, choice, replace(request, cache=folder), dnn)


def _session(model: Any, choice: Choice, request: SessionRequest, dnn: str) -> Any:
    import onnxruntime

    chain = [choice.provider, *(PROVIDERS[name] for name in (*choice.provider.fallbacks, "cpu"))]
    listed = [(each.key, each.options(request)) for each in chain]
    onnxruntime.set_default_logger_severity(4)  # a provider that is left out is reported by our own message
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), session_options(optimize=choice.provider.optimize), providers=listed,
            enable_fallback=0,
        )  # fmt: skip
    finally:
        onnxruntime.set_default_logger_severity(2)
    if choice.provider.key not in session.get_providers():
        device = f" {choice.target}" if choice.target else ""
        raise ProviderError(
            f"execution provider {choice.text} cannot be loaded for {dnn}: its device{device}, a library or the driver "
            "for it is missing"
        )
    return session


def session_options(*, optimize: bool) -> Any:
    """Options of a session with the threads of this process."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def compiled_folder(model: Any, choice: Choice, request: SessionRequest, dnn: str) -> Path | None:
    """Folder for what the provider compiles from this model; None if it compiles nothing or there is no folder."""
    if not choice.provider.compiles:
        return None
    checksum = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    setup = {"provider": choice.text, "precision": request.precision}
    machine = hardware_facts(request.device)
    if request.device.type == "cpu":
        setup["threads"] = str(request.threads)
    return COMPILED.entry(Key(checksum, setup, machine, dnn))


def hardware_facts(device: torch.device) -> dict[str, str]:
    """Name of the processor and the versions that decide whether a compiled network or a time is valid."""
    facts = {"torch": version("torch")} if find_spec("torch") is not None else {}
    with contextlib.suppress(ImportError):
        import onnxruntime

        facts["onnxruntime"] = onnxruntime.__version__
    if device.type == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        capability = f"{properties.major}.{properties.minor}"
        return {"gpu": properties.name, "compute capability": capability, "cuda": str(torch.version.cuda), **facts}
    return {"cpu": cpu_model(), **facts}
