"""The figures of a board as text: what the terminal and the page show."""

from __future__ import annotations

from multi_dnn_ros.benchmark.board.record import BoardRecord, MixRecord, Trial
from multi_dnn_ros.benchmark.board.search import CONFIDENCE, DROP_LIMIT
from multi_dnn_ros.benchmark.quantities import (
    CORES,
    CPU_PER_RESULT,
    ENERGY,
    GPU,
    GPU_MEMORY,
    LATENCY_P50,
    LATENCY_P95,
    LATENCY_P99,
    MEMORY,
    MIB,
    POWER,
    RATE,
    RESULTS,
    TEMPERATURE,
    Quantity,
    cell,
)
from multi_dnn_ros.common.reporting import counts_text, table

#: There is a remark if other programs used more than this share of the cores before the run.
_BUSY = 0.10
#: In the order of :func:`figures_of`.
_SHOWN = (
    RATE, RESULTS, LATENCY_P50, LATENCY_P95, LATENCY_P99, CORES, CPU_PER_RESULT, MEMORY, GPU, GPU_MEMORY, POWER, ENERGY,
    TEMPERATURE,
)  # fmt: skip


def figures_of(mix: MixRecord) -> dict[Quantity, float | None]:
    """Every figure at the highest rate; all None without one."""
    trial = mix.at_highest
    if trial is None:
        return dict.fromkeys(_SHOWN)
    latency = trial.latency_ms
    values = (
        mix.highest_hz,
        trial.results_hz,
        *((latency.p50, latency.p95, latency.p99) if latency is not None else (None, None, None)),
        trial.cpu_cores,
        trial.cpu_ms_per_result,
        trial.memory_bytes / MIB,
        100.0 * trial.gpu_share if trial.gpu_share is not None else None,
        trial.gpu_memory_bytes / MIB if trial.gpu_memory_bytes is not None else None,
        trial.power_w,
        trial.energy_j_per_result,
        trial.temperature_c,
    )
    return dict(zip(_SHOWN, values, strict=True))


def shown_rows(record: BoardRecord) -> tuple[list[str], list[list[str]]]:
    """Header and a row per figure, a column per mix with figures; figures that no mix has are left out."""
    mixes = {name: mix for name, mix in record.mixes.items() if mix.at_highest is not None}
    columns = {name: figures_of(mix) for name, mix in mixes.items()}
    rows = []
    for quantity in next(iter(columns.values()), {}):
        values = [column[quantity] for column in columns.values()]
        if any(value is not None for value in values):
            rows.append([quantity.heading, *map(cell, values)])
    if rows:
        rows.append(["missing results", *(_missing(mix.at_highest) for mix in mixes.values())])
    if any(mix.at_highest and mix.at_highest.throttled for mix in mixes.values()):
        rows.append(["throttled", *(_throttled(mix.at_highest) for mix in mixes.values())])
    return ["figure", *mixes], rows


def left_out(record: BoardRecord) -> list[str]:
    """Mixes without figures, one line each."""
    return [f"{name}: {status_text(mix)}" for name, mix in record.mixes.items() if mix.at_highest is None]


def status_text(mix: MixRecord) -> str:
    """The status of a mix, with the reason."""
    return mix.status.replace("_", " ") + (f": {mix.reason}" if mix.reason else "")


def remarks(record: BoardRecord) -> list[str]:
    """What a reader must know to judge the figures, one sentence each."""
    found = []
    if record.idle is not None and record.idle.busy_share > _BUSY:
        found.append(
            f"Other programs used {record.idle.busy_share:.0%} of the CPU before the run; without them the rates "
            "would be higher and the latencies lower."
        )
    for name, mix in record.mixes.items():
        trial = mix.at_highest
        if trial is None or mix.highest_hz is None:
            continue
        if mix.highest_hz >= record.settings.max_rate_hz:
            found.append(f"{name}: {mix.highest_hz:g} Hz is the highest rate that was tried; --max-rate raises it.")
        elif mix.failing_hz is None:
            found.append(f"{name}: higher rates were not tried.")
        elif mix.failing_hz > 1.1 * mix.highest_hz:
            found.append(
                f"{name}: the highest rate is between {mix.highest_hz:.3g} and {mix.failing_hz:.3g} Hz; the search "
                "ended before it was narrowed down."
            )
        if not trial.decided:
            found.append(
                f"{name}: {trial.frames:.0f} frames are too few to decide at {CONFIDENCE:.0%} confidence whether less "
                f"than {DROP_LIMIT:.0%} of the results are missing."
            )
        if mix.long is None:
            found.append(f"{name}: the figures are from a trial of {trial.seconds:.0f} s; no long run passed.")
        if mix.status != "measured":
            found.append(f"{name}: not completed ({status_text(mix)}); the figures are those measured until then.")
        for component, reason in trial.throttled.items():
            found.append(f"{name}: {component} was throttled: {reason}.")
    trials = [mix.at_highest for mix in record.mixes.values() if mix.at_highest is not None]
    idle_w = record.idle.power_w if record.idle is not None else None
    if trials and idle_w is None and all(trial.power_w is None for trial in trials):
        found.append("Power is not readable on this computer, so there is no energy per result.")
    return found


def board_lines(record: BoardRecord) -> list[tuple[str, str]]:
    """Name and value of what the figures depend on; what is unknown is left out."""
    board = record.board
    memory = board.gpu_memory_bytes
    lines = [
        ("hardware", board.hardware),
        ("CPU", f"{board.cpu}, {board.cores} cores"),
        ("memory", f"{board.memory_bytes / 2**30:.1f} GiB"),
        ("GPU", f"{board.gpu}, {memory / 2**30:.1f} GiB" if board.gpu and memory else board.gpu or "none used"),
        ("kernel", board.kernel),
        ("ROS runtime", board.runtime),
        ("power mode", board.power_mode),
        ("CPU governor", board.governor),
        ("cameras", f"{record.settings.cameras} of {'x'.join(map(str, record.settings.size))}, "
                    f"{record.settings.encoding}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
    ]  # fmt: skip
    if record.idle is not None:
        rest = [f"other programs use {record.idle.busy_share:.0%} of the CPU"]
        rest += [f"{record.idle.power_w:.1f} W"] if record.idle.power_w is not None else []
        rest += [f"{record.idle.temperature_c:.0f} °C"] if record.idle.temperature_c is not None else []
        lines.append(("before the run", ", ".join(rest)))
    return [(name, value) for name, value in lines if value]


def board_table(record: BoardRecord) -> str:
    """Text for the terminal."""
    header, rows = shown_rows(record)
    return "\n".join([*([table(header, rows)] if rows else []), *left_out(record), *remarks(record)])


def _missing(trial: Trial | None) -> str:
    if trial is None:
        return "-"
    return f"{trial.drop_share:.1%}" + (f" ({counts_text(trial.dropped)})" if trial.dropped else "")


def _throttled(trial: Trial | None) -> str:
    return ", ".join(trial.throttled) if trial is not None and trial.throttled else "no"
