"""`backend: measured`: the fastest backend of a DNN on this machine, among those whose results agree with eager.

Not the default, because it prepares a DNN once more for each candidate. Afterwards the choice is read from the cache,
also by `auto`.
"""

from __future__ import annotations

import copy
import gc
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like, relative_error
from multi_dnn_ros.backends.branch_choice import measure_in_turn
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.green_contexts import computing_on
from multi_dnn_ros.backends.onnx_providers import candidates as provider_candidates
from multi_dnn_ros.backends.onnx_providers import hardware_facts, missing_provider
from multi_dnn_ros.backends.precision import PRECISIONS, allowed_precisions
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.common.captured_warnings import CapturedWarnings
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.machine_cache import Key, MachineCache
from multi_dnn_ros.common.reporting import table, three_digits
from multi_dnn_ros.graph.checksum import network_checksum
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.pipeline.choices import backend_name, choose_backend
from multi_dnn_ros.settings.schema import DnnConfig

log = logging.getLogger(__name__)

#: Value of the parameter `dnn.<dnn>.backend`.
MEASURED = "measured"
#: Values of that parameter that name no backend.
UNNAMED = ("auto", MEASURED)
CHOICES = MachineCache("backends", "the measured backends")

#: Another backend is used if its time is at most this share of that of backend auto: smaller gains may be noise.
_MAX_TIME_SHARE = 0.98
_ROUNDS = 9
#: Duration of one candidate in one round; long compared with clock resolution.
_BLOCK_S = 0.01


@dataclass(frozen=True)
class Row:
    """A backend that was considered. provider: execution provider of ONNX Runtime; "": none. ms: median time of one
    image; None: not measured. error: the largest error relative to the scale of an output. reason: why it is not used.
    """

    backend: str
    provider: str = ""
    ms: float | None = None
    error: float | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.provider}" if self.provider else self.backend


def with_measured_backend(
    dnn: Dnn, settings: DnnConfig, device: torch.device, progress: Callable[[str], None]
) -> DnnConfig:
    """`settings` with the fastest backend and execution provider instead of `measured`, from the cache if it is there.

    progress: called with a line before slow steps and with the table of all backends. The backend of `auto` is kept if
    none is at least 2 % faster, if none works, and with int8, which only one backend computes.
    """
    if settings.precision == "int8":
        automatic = backend_name("auto", device, dnn.name, settings.precision)
        progress(f"dnn.{dnn.name}: backend {automatic}, the only one with int8")
        return settings.model_copy(update={"backend": automatic})
    rows = _candidates(settings, device)
    key = _key(dnn, settings, device, rows)
    # Identical GPUs are configured at the same time: one measures, and the others wait for its choice.
    with CHOICES.locked(key.name, lambda text: progress(f"{dnn.name}: {text}")):
        found, source = _cached(key, rows), _cache_text(key)
        if found is None:
            progress(f"measuring {sum(not row.reason for row in rows)} backends for {dnn.name}")
            found, complete = _measured(dnn, settings, device, rows)
            if complete and any(row.ms is not None for row in found):
                CHOICES.write(key, [asdict(row) for row in found])
            elif not complete:
                progress(
                    f"the choice for {dnn.name} is not cached: a backend ran out of memory, which may be free next time"
                )
            source = "measured now"
    return _with_fastest(dnn, settings, device, found, source, progress)


def with_cached_backend(
    dnn: Dnn, settings: DnnConfig, device: torch.device, progress: Callable[[str], None] = lambda text: None
) -> DnnConfig:
    """`settings` with the backend and execution provider that were measured earlier on this machine, instead of `auto`
    or `measured`.

    `settings` itself if it names a backend or if nothing was measured for it. progress: called with the table of all
    backends.
    """
    if settings.backend not in UNNAMED or settings.precision == "int8" or next(CHOICES.entries(), None) is None:
        return settings
    rows = _candidates(settings, device)
    key = _key(dnn, settings, device, rows)
    found = _cached(key, rows)
    if found is None:
        return settings
    return _with_fastest(dnn, settings, device, found, _cache_text(key), progress)


def _cache_text(key: Key) -> str:
    return f"from {CHOICES.folder / key.name}"


def _with_fastest(
    dnn: Dnn,
    settings: DnnConfig,
    device: torch.device,
    found: Sequence[Row],
    source: str,
    progress: Callable[[str], None],
) -> DnnConfig:
    best = choose(found, backend_name("auto", device, dnn.name, settings.precision))
    progress(f"dnn.{dnn.name}: backend {best.name}, {source}:\n{as_table(found)}")
    providers = [best.provider] if best.provider else []
    return settings.model_copy(update={"backend": best.backend, "providers": providers or settings.providers})


def choose(rows: Sequence[Row], automatic: str) -> Row:
    """The fastest row, but that of backend `automatic` unless another one is clearly faster."""
    timed = [(row.ms, row) for row in rows if row.ms is not None]
    if not timed:
        return Row(automatic)
    usual = min((pair for pair in timed if pair[1].backend == automatic), key=lambda pair: pair[0], default=None)
    best = min(timed, key=lambda pair: pair[0])
    return best[1] if usual is None or best[0] <= _MAX_TIME_SHARE * usual[0] else usual[1]


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    cells = [
        [
            row.name,
            "-" if row.ms is None else three_digits(row.ms),
            "-" if row.error is None else f"{row.error:.1e}",
            row.reason,
        ]
        for row in rows
    ]
    return table(["backend", "ms", "error", "why not"], cells)


def _candidates(settings: DnnConfig, device: torch.device) -> list[Row]:
    """All backends; those with a reason are not measured."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    rows = []
    for spec in BACKENDS.usable():
        if device.type not in spec.precisions:
            rows.append(Row(spec.name, reason=f"it runs on {' and '.join(spec.precisions)}"))
        elif settings.precision not in allowed_precisions(device.type, spec.name, capability):
            rows.append(Row(spec.name, reason=f"it has no precision {settings.precision} on {device}"))
        elif spec.compiles:
            rows.append(Row(spec.name, reason="it compiles for minutes; to use it, name it as backend"))
        elif spec.providers:
            choices, reasons = provider_candidates(settings.providers, device, settings.precision)
            rows += [Row(spec.name, choice.text) for choice in choices]
            rows += [Row(spec.name, reason=reason) for reason in reasons]
            if not choices and not reasons:
                rows.append(Row(spec.name, reason=f"it {missing_provider(device.type)}"))
        else:
            rows.append(Row(spec.name))
    return rows


def _measured(dnn: Dnn, settings: DnnConfig, device: torch.device, rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """The rows with times and errors, and whether no candidate ran out of memory."""
    inputs = dnn.example_inputs()
    stages = cut_module(dnn.module, inputs, settings.jobs, fold_batch_norm=True)
    image = noise_like(inputs)
    with torch.inference_mode():
        expected = tuple(tensor.clone() for tensor in run_stages(stages, image))
    found, complete = list(rows), True
    calls: dict[int, Callable[[], object]] = {}
    with computing_on(device, settings.sms), torch.inference_mode():
        on_device = tuple(tensor.to(device) for tensor in image)
        for index, row in enumerate(rows):
            if row.reason:
                continue
            try:
                chain = _prepared(dnn, settings, device, row, stages, inputs)
                results = tuple(tensor.cpu() for tensor in run_stages(chain, on_device))
                check_agreement(results, expected, len(chain) * PRECISIONS[settings.precision].tolerance(device))
            except Exception as error:  # whatever this backend raises, another one may work
                found[index] = Row(row.backend, row.provider, reason=summarize_error(error))
                complete = complete and not is_out_of_memory(error)
                continue
            found[index] = Row(row.backend, row.provider, error=relative_error(results, expected))
            calls[index] = _call(chain, on_device)
        times = measure_in_turn(calls, _timer(device), _ROUNDS)
    for index, ms in times.items():
        found[index] = Row(found[index].backend, found[index].provider, statistics.median(ms), found[index].error)
    calls.clear()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found, complete


def _prepared(
    dnn: Dnn, settings: DnnConfig, device: torch.device, row: Row, stages: Sequence[nn.Module], inputs: Tensors
) -> Sequence[Stage]:
    """The stages on this backend. Raises ValueError, with the backend's first warning, if it would run something else
    instead.
    """
    backend = choose_backend(
        row.backend,
        device,
        settings.precision,
        dnn=dnn.name,
        branches=str(settings.branches or "auto"),
        providers=[row.provider] if row.provider else (),
    )
    with CapturedWarnings("multi_dnn_ros.backends") as warnings, torch.inference_mode(False):
        copies: Any = copy.deepcopy(list(stages))  # copies made in inference mode could not be moved to a GPU
        ready = backend.prepare(copies, inputs, device)
    if instead := [text for text in warnings.messages if "stays float32" not in text]:
        raise ValueError(instead[0])
    whole = getattr(ready[0], "single_launch", None)
    return ready if whole is None else [whole]


def _call(chain: Sequence[Stage], inputs: Tensors) -> Callable[[], object]:
    return lambda: run_stages(chain, inputs)


def _timer(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """A function that measures the milliseconds of one call."""
    return gpu_ms if device.type == "cuda" else _cpu_ms


def _cpu_ms(call: Callable[[], object]) -> float:
    calls, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < _BLOCK_S or not calls:
        call()
        calls += 1
    return 1e3 * taken / calls


def _key(dnn: Dnn, settings: DnnConfig, device: torch.device, rows: Sequence[Row]) -> Key:
    setup = {
        "device": device.type,
        "precision": settings.precision,
        "threads": str(torch.get_num_threads()),
        "sms": str(settings.sms),
        "jobs": str(settings.jobs),
        "branches": str(settings.branches),
        "inputs": ", ".join(str(tuple(tensor.shape)) for tensor in dnn.example_inputs()),
        "backends": ", ".join(row.name for row in rows if not row.reason),
    }
    return Key(network_checksum(dnn.module), setup, hardware_facts(device), dnn.name)


def _cached(key: Key, rows: Sequence[Row]) -> list[Row] | None:
    """The rows that were stored under this key; None if there are none, or they are invalid."""
    content = CHOICES.read(key)
    if content is None:
        return None
    try:
        found = [Row(**each) for each in content]
        if any(row.ms is not None and not 0.0 < row.ms < 1e9 for row in found):
            raise ValueError("a time is not positive")
        if not {row.name for row in found if row.ms is not None} <= {row.name for row in rows if not row.reason}:
            raise ValueError("a time belongs to a backend that is not installed")
    except (TypeError, ValueError, AttributeError) as error:
        log.warning("the measured backends in %s are not used: %s", CHOICES.folder / key.name, summarize_error(error))
        return None
    return found
