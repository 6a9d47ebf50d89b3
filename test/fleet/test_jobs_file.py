"""The jobs file: what is read, and what the messages about mistakes say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet.jobs_file import read_jobs_file

JOB = {"name": "a", "model": "torchvision:resnet18", "data": "classes:c", "global_batch": 20, "steps": 10}


def written(folder: Path, content: object) -> Path:
    path = folder / "jobs.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_file_is_read_with_defaults(tmp_path: Path) -> None:
    jobs = [{**JOB, "size": "640x480"}, {**JOB, "name": "b", "priority": 2, "size": [64, 32]}]
    file = read_jobs_file(written(tmp_path, {"period_s": 5, "jobs": jobs}))
    assert [job.name for job in file.jobs] == ["a", "b"]
    assert [job.priority for job in file.jobs] == [1.0, 2.0]
    assert [job.size for job in file.jobs] == [(640, 480), (64, 32)]
    assert file.period_s == 5.0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"jobs": [JOB], "period": 3}, "unknown key 'period'; allowed: period_s, jobs"),
        ({"jobs": [{**JOB, "xyzzy": 3}]}, "job 'a': unknown key 'xyzzy'; allowed: name, model,"),
        ({"jobs": [{**JOB, "global_batch": 9}]}, "job 'a': global_batch = 9: Input should be greater"),
        ({"jobs": [{**JOB, "epochs": 3}]}, "job 'a': give either epochs or steps"),
        ({"jobs": [{key: JOB[key] for key in JOB if key != "data"}]}, "job 'a': key 'data' is missing"),
        ({"jobs": [3]}, "job 1: "),
        ({"jobs": [JOB, dict(JOB)]}, "several jobs are named a"),
        ({"jobs": []}, "jobs = []: "),
        ({"jobs": [{**JOB, "name": "../x"}]}, "name = '../x'"),
        ("", "expected a mapping with the key `jobs`, found nothing"),
        ("[1, 2]", "expected a mapping with the key `jobs`, found list"),
        ("jobs: [", "not a YAML file"),
        ("jobs: []\njobs: []\n", "given twice"),
    ],
)
def test_mistakes_are_named(content: object, text: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=r"jobs\.yaml") as error:
        read_jobs_file(path)
    assert text in str(error.value)
    assert str(path) in str(error.value)


def test_options_that_contradict_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {"jobs": [JOB]})
    assert main(["fleet", str(path), "--compare", "--policy", "even"]) == 2
    assert "--compare trains under all policies; leave out --policy" in capsys.readouterr().err


def test_without_ray_the_command_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main(["fleet", str(written(tmp_path, {"jobs": [JOB]}))]) == 1
    assert 'pip install "multi_dnn_ros[ray]"' in capsys.readouterr().err
