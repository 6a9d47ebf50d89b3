"""The HTML page with the figures of a board."""

from __future__ import annotations

from multi_dnn_ros.benchmark.board.plots import plot_highest, plot_search, plot_timeline
from multi_dnn_ros.benchmark.board.record import BoardRecord, MixRecord
from multi_dnn_ros.benchmark.board.report import board_lines, left_out, remarks, shown_rows
from multi_dnn_ros.benchmark.board.search import CONFIDENCE, DROP_LIMIT
from multi_dnn_ros.benchmark.html_page import Page
from multi_dnn_ros.benchmark.quantities import cell
from multi_dnn_ros.common.extras import MissingExtra, require
from multi_dnn_ros.common.reporting import counts_text


def board_page(record: BoardRecord) -> str:
    """The record as an HTML page. Without matplotlib it has no plots, and says so."""
    page = Page(f"What this board can do: {record.board.hardware or record.board.gpu or record.board.cpu}")
    try:
        require("a plot", "matplotlib")
        plots = True
    except MissingExtra as error:
        page.paragraph(f"This page has no plots: {error}", "note")
        plots = False
    header, rows = shown_rows(record)
    if rows:
        page.paragraph(
            f"Highest camera rate with less than {DROP_LIMIT:.0%} of the results missing, and what was measured at it."
        )
        page.table(header, rows)
        figure = plot_highest(record) if plots else None
        if figure is not None:
            page.figure(figure, "Highest rate and latency of each mix; the table has the figures.")
    else:
        page.paragraph("No mix has figures.")
    page.bullets(remarks(record))
    if missing := left_out(record):
        page.heading("Without figures")
        page.bullets(missing)
    page.heading("The board")
    page.table(["", ""], board_lines(record), text=True)
    if plots and (timeline := plot_timeline(record)) is not None:
        page.heading("Sensors during the run")
        page.figure(timeline, "Power, temperature and clocks over time; red: throttled.")
    for name, mix in record.mixes.items():
        if mix.trials:
            _add_mix(page, name, mix, plots)
    page.heading("How it was measured")
    page.paragraph(
        "Cameras, node and observer are processes of this computer. The rate of the cameras is searched by bisection; "
        f"a trial ends when the share of missing results is above or below {DROP_LIMIT:.0%} at {CONFIDENCE:.0%} "
        "confidence (Wilson's score interval over the frames). Then a long run at the highest rate gives the figures. "
        "Latency is from the image's stamp to the receipt of the result. CPU and memory are those of the node with its "
        "engine processes, without the cameras; power and temperature are those of the whole computer."
    )
    for command in (record.command, *record.resumed):
        page.code(command)
    return page.text()


def _add_mix(page: Page, name: str, mix: MixRecord, plots: bool) -> None:
    page.heading(name)
    start = f" The node was active after {mix.start_s:.0f} s." if mix.start_s is not None else ""
    page.paragraph(f"{mix.text}, on {mix.device or 'an unknown device'}.{start}")
    if plots and (figure := plot_search(mix)) is not None:
        page.figure(figure, f"Missing results of {name} against the rate; the table has the figures.")
    rows = []
    for number, trial in enumerate(mix.trials):
        latency = trial.latency_ms
        verdict = "served" if trial.passed else "not served"
        verdict += "" if trial.decided else " (not decided)"
        rows.append([
            f"{trial.rate_hz:.4g}" + (" (long run)" if number == mix.long else ""), f"{trial.frames:.0f}",
            f"{trial.seconds:.0f}", cell(trial.results_hz), f"{trial.drop_share:.1%}",
            counts_text(trial.dropped),
            cell(latency.p50 if latency else None), cell(latency.p99 if latency else None), verdict,
        ])  # fmt: skip
    page.table(["rate, Hz", "frames", "s", "results/s", "missing", "by reason", "p50, ms", "p99, ms", "verdict"], rows)
