"""The file of a fleet: what is read, and what the messages about mistakes say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet.jobs_file import JobsFileError, read_jobs_file

JOB = {"name": "a", "model": "torchvision:resnet18", "data": "classes:c", "global_batch": 20, "steps": 10}


def written(folder: Path, content: object) -> Path:
    path = folder / "jobs.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_file_is_read_with_defaults(tmp_path: Path) -> None:
    file = read_jobs_file(written(tmp_path, {"period_s": 5, "jobs": [JOB, {**JOB, "name": "b", "priority": 2}]}))
    assert [job.name for job in file.jobs] == ["a", "b"]
    assert [job.priority for job in file.jobs] == [1.0, 2.0]
    assert file.period_s == 5.0
    assert file.thresholds.slow_down == 0.1


def test_a_size_is_written_as_on_the_command_line_or_as_a_list(tmp_path: Path) -> None:
    jobs = [{**JOB, "size": "640x480"}, {**JOB, "name": "b", "size": [64, 32]}]
    assert [job.size for job in read_jobs_file(written(tmp_path, {"jobs": jobs})).jobs] == [(640, 480), (64, 32)]
    with pytest.raises(JobsFileError, match=r"size = '64x20000': expected a size .* \(1 to 16384 pixels each\)"):
        read_jobs_file(written(tmp_path, {"jobs": [{**JOB, "size": "64x20000"}]}))


def test_problems_of_all_jobs_are_listed_and_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path, {"jobs": [{**JOB, "size": "64"}, {**JOB, "name": "b", "steps": 0}]})
    with pytest.raises(JobsFileError) as error:
        read_jobs_file(path)
    assert str(error.value) == (
        f"{path}: job 'a': size = '64': expected a size such as 640x480 (1 to 16384 pixels each); "
        "job 'b': steps = 0: Input should be greater than or equal to 1"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"jobs": [{**JOB, "epoch": 3}]}, "job 'a': unknown key 'epoch'; did you mean epochs?"),
        ({"jobs": [JOB], "period": 3}, "unknown key 'period'; did you mean period_s?"),
        ({"jobs": [{**JOB, "xyzzy": 3}]}, "job 'a': unknown key 'xyzzy'; allowed: name, model,"),
        (
            {"jobs": [{**JOB, "global_batch": 9}]},
            "job 'a': global_batch = 9: Input should be greater",
        ),
        ({"jobs": [{**JOB, "busy_limit_s": 1e15}]}, "job 'a': busy_limit_s = 1000000000000000.0: Input should be less"),
        ({"jobs": [{**JOB, "epochs": 3}]}, "job 'a': give either epochs or steps"),
        ({"jobs": [{key: JOB[key] for key in JOB if key != "data"}]}, "job 'a': key 'data' is missing"),
        ({"jobs": [JOB, dict(JOB)]}, "several jobs are named a"),
        ({"jobs": []}, "`jobs` is empty; expected at least one job"),
        ("", "expected a mapping with the key `jobs`, found nothing"),
        ({"jobs": [{**JOB, "name": "../x"}]}, "name = '../x'"),
        ("[1, 2]", "expected a mapping with the key `jobs`, found a list"),
        ("jobs: [", "not a YAML file"),
        ("jobs: []\njobs: []\n", "given twice"),
    ],
)
def test_mistakes_are_named(content: object, text: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(JobsFileError) as error:
        read_jobs_file(path)
    assert text in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml: cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("units", "text"),
    [
        ("cuda:0,cuda:0", "name a GPU twice"),
        ("cpu:1,cuda:0", "mix CPUs and GPUs"),
        ("cuda:0/16sms", "is not known"),
        ("tpu", "is not known"),
    ],
)
def test_units_that_cannot_train_together_are_refused(
    units: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {"jobs": [JOB]})
    with pytest.raises(SystemExit):
        main(["fleet", str(path), "--units", units])
    assert text in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {"jobs": [JOB]})
    for mode in ([], ["--compare"], ["--measure", str(tmp_path / "times.json")]):
        units = ["--units", "cuda:98,cuda:99"]
        assert main(["fleet", str(path), *units, *mode]) == 1
        assert "--units cuda:98: PyTorch sees" in capsys.readouterr().err
