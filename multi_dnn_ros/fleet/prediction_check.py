"""``python -m multi_dnn_ros.fleet.prediction_check``: compares a measured fleet with the simulator.

The measured fleet is the report of `multi-dnn fleet --compare`; the prediction made before it is the report of
`--simulate`, whose step times are also the input of the simulations made here. The file says whether anything in these
was fitted to the measured fleet. If so, they show whether the model explains the run, not whether it predicts another.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.reporting import provenance, table, write_json
from multi_dnn_ros.fleet.contention import JobLoad, predict
from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.scenario import Scenario, run_scenario
from multi_dnn_ros.fleet.shares import Shares
from multi_dnn_ros.fleet.sharing import POLICIES
from multi_dnn_ros.fleet.step_times import StepTimes

#: A job that has made its last step still uses a unit, while it is scored. Step times of others are not used that many
#: seconds before its end.
_SCORING_S = 4.0
#: The run to which the defaults in step_times.py were fitted, and the SHA-256 of its policies, which identifies it.
FITTED_RUN = "results/fleet_4gpus.json (2026-11-26, revision ae9bf559)"
_FITTED_DIGEST = "0654a18ea5eabe7336e70bfe8921ad4e380d31dfcfdabf0b791d47261bac305e"
FITTED = "fitted to the same run, not verified on another"
NOT_FITTED = f"nothing was fitted to this run: the defaults of time slice and pause are fitted to {FITTED_RUN}"


def settled_steps(file: JobsFile, decisions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Measured step times, in ms, of each set of shares that was in force for at least one settled period.

    decisions: those of a policy. A period is settled if it lasted as long as a period of the file, so that it is not a
    trial, began without a change of shares, or with one that was undone, and no job ended in it or soon after it. If
    jobs train in turns, the shares are those of the jobs that trained.
    """
    batches = {job.name: job.global_batch for job in file.jobs}
    found: dict[tuple[tuple[str, Shares], ...], list[dict[str, float]]] = {}
    ends = [after["seconds"] for before, after in pairwise(decisions) if set(before["shares"]) - set(after["shares"])]
    for before, after in pairwise(decisions):
        began_with_a_change = before["jobs"] and before["reason"] != "reverted"
        short = after["seconds"] - before["seconds"] < 0.9 * file.period_s
        if began_with_a_change or short or any(0 <= end - after["seconds"] < _SCORING_S for end in ends):
            continue
        training = before.get("training", before["shares"])  # without this key, all jobs trained at the same time
        key = tuple((job, tuple(shares)) for job, shares in before["shares"].items() if job in training)
        rates = after["images_per_s"]
        if all(job in rates for job, _ in key):
            found.setdefault(key, []).append({job: 1e3 * batches[job] / rates[job] for job, _ in key})
    return [
        {"shares": dict(key), "measured_ms": {job: statistics.median(each[job] for each in steps) for job, _ in key}}
        for key, steps in found.items()
    ]


class Check:
    """measured: report of `--compare`. times: the step times of the simulations."""

    def __init__(self, measured: Mapping[str, Any], times: StepTimes) -> None:
        self._measured = measured
        self._file = JobsFile.model_validate(measured["jobs_file"])
        self._times = times
        self._units = len(measured["units"])
        self.settled = {
            policy: settled_steps(self._file, measured["policies"][policy]["decisions"]) for policy in POLICIES
        }

    def step_errors(self, times: StepTimes) -> dict[str, Any]:
        """Errors of predicted step times by policy, relative to the measured ones; empty without settled periods."""
        loads = {job.name: JobLoad(times.of(job.model), job.global_batch) for job in self._file.jobs}
        found: dict[str, Any] = {}
        for policy, sets in self.settled.items():
            errors = []
            for each in sets:
                rates = predict(loads, each["shares"], self._units, times.interconnect, times.time_slice_ms / 1e3)
                errors += [1e3 * rates.step_s[job] / value - 1.0 for job, value in each["measured_ms"].items()]
            found[policy] = {}
            if errors:
                found[policy] = {
                    "step_times": len(errors),
                    "median_absolute_error": statistics.median(abs(error) for error in errors),
                    "largest_absolute_error": max(abs(error) for error in errors),
                    "median_error": statistics.median(errors),
                }
        return found

    def against_measured(self, predicted: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The figures of each policy, and their errors. predicted: figures by policy."""
        found: dict[str, Any] = {}
        for policy in POLICIES:
            measured = self._measured["policies"][policy]
            found[policy] = {
                key: {
                    "measured": measured[key],
                    "predicted": predicted[policy][key],
                    "error": predicted[policy][key] / measured[key] - 1.0,
                }
                for key in ("largest_slow_down", "median_slow_down", "total_s")
            }
        return found

    def simulated(self, start_s: float | None, image_ms: float = 0.0, host_ms: float = 0.0) -> dict[str, Any]:
        """A simulation with the present model. start_s: of every job; None: as in the file of step times. image_ms:
        added to the busy time per image. host_ms: added to the idle time per tenth, for runs in which each tenth was
        augmented separately.
        """
        times = corrected(self._times, start_s, image_ms, host_ms)
        results = run_scenario(self._file, times, Scenario(self._units))
        return {
            "time_slice_ms": times.time_slice_ms,
            "change_s": times.change_s,
            "start_s": start_s,  # null: as in the file of step times
            "image_ms": image_ms,
            "host_ms_per_tenth": host_ms,
            "policies": self.against_measured({policy: result.figures() for policy, result in results.items()}),
            "step_time_errors": self.step_errors(times),
        }


def corrected(times: StepTimes, start_s: float | None, image_ms: float, host_ms: float) -> StepTimes:
    """The step times with the corrections of :meth:`Check.simulated`."""
    content = times.model_dump()
    for network in content["networks"]:
        if start_s is not None:
            network["start_s"] = start_s
        largest = network["steps"][-1]["batch"]
        for step in network["steps"]:
            step["busy_ms"] += image_ms * step["batch"]
            step["step_ms"] += image_ms * step["batch"] + host_ms * round(10 * step["batch"] / largest)
    return StepTimes.model_validate(content)


def note(measured: Mapping[str, Any], *, fitted: bool) -> str:
    """Whether simulations were fitted to the measured run. fitted: as the user says; not needed for FITTED_RUN."""
    content = json.dumps(measured["policies"], sort_keys=True)
    return FITTED if fitted or hashlib.sha256(content.encode()).hexdigest() == _FITTED_DIGEST else NOT_FITTED


def main() -> None:
    """Write the comparison."""
    parser = argparse.ArgumentParser(prog="python -m multi_dnn_ros.fleet.prediction_check", description=__doc__)
    parser.add_argument("measured", type=Path, help="report of `multi-dnn fleet --compare`")
    parser.add_argument("predicted", type=Path, help="report of `multi-dnn fleet --simulate`, made before")
    parser.add_argument("--start-s", type=float, nargs="+", default=[None], metavar="S",
                        help="seconds until a job's first step; with the first value the corrections are tried, the "
                        "others show how much the figures depend on it (default: as in the file of step times, 0 if it "
                        "was not measured)")  # fmt: skip
    parser.add_argument("--image-ms", type=float, default=0.0, help="correction: time of the unit per image")
    parser.add_argument("--host-ms", type=float, default=0.0, help="correction: time of the host per tenth of a batch")
    parser.add_argument("--fitted-to-this-run", action="store_true",
                        help="starts, corrections or the model were chosen by means of the measured fleet; the file "
                        "says so, and otherwise that nothing was fitted to it")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    measured, before = (json.loads(path.read_text(encoding="utf-8")) for path in (args.measured, args.predicted))
    times = StepTimes.model_validate(before["step_times"])
    check = Check(measured, times)
    (scenario,) = [each for each in before["scenarios"] if each["units"] == len(measured["units"])]
    # The simulator knew no time slices when it wrote files without this key.
    slice_ms = before["step_times"].get("time_slice_ms", 0.0)
    as_before = times.model_copy(update={"time_slice_ms": slice_ms})
    sentence = note(measured, fitted=args.fitted_to_this_run)
    start_s, *other_starts = args.start_s
    again = {"step times as measured": check.simulated(start_s)}
    if args.image_ms:
        again[f"{args.image_ms:g} ms more per image"] = check.simulated(start_s, image_ms=args.image_ms)
    if args.host_ms:
        again[f"{args.host_ms:g} ms more of the host per tenth"] = check.simulated(start_s, host_ms=args.host_ms)
    for other in other_starts:
        again[f"step times as measured, start after {other:g} s"] = check.simulated(other)
    write_json(
        args.output,
        {
            **provenance(),
            "settled": check.settled,
            "predicted before the run": {
                "policies": check.against_measured(scenario["policies"]),
                "step_time_errors": check.step_errors(as_before),
            },
            "simulated after the run": {"note": sentence, **again},
        },
    )
    print(table(["simulation", "policy", "largest slow-down", "total s", "steps, median error"], _rows(again)))
    print(f"after the run: {sentence}; written to {args.output}")


def _rows(again: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            name, policy, _beside(each["policies"][policy]["largest_slow_down"], 2),
            _beside(each["policies"][policy]["total_s"], 0),
            f"{errors['median_absolute_error']:.1%}" if (errors := each["step_time_errors"][policy]) else "not settled",
        ]
        for name, each in again.items()
        for policy in POLICIES
    ]  # fmt: skip


def _beside(figure: Mapping[str, float], digits: int) -> str:
    return f"{figure['predicted']:.{digits}f} (measured {figure['measured']:.{digits}f}, {figure['error']:+.0%})"


if __name__ == "__main__":
    main()
