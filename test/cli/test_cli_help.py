"""Every `--help` can be used by somebody who does not know the project."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from multi_dnn_ros import cli
from multi_dnn_ros.cli.main import GROUPS, MODULES, VERBS, build_parser
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from parsers(each)


PARSERS = {parser.prog: parser for parser in parsers(build_parser())}
COMMANDS = {name: parser for name, parser in PARSERS.items() if name != "multi-dnn"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_line_is_a_sentence_that_begins_with_a_verb(name: str) -> None:
    first = (COMMANDS[name].description or "").partition("\n\n")[0]
    assert re.fullmatch(r"[A-Z][a-z]+,? [^.]+\.", first), first


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_of_the_command_is_shown(name: str) -> None:
    assert re.search(rf"^  {name}( |$)", COMMANDS[name].epilog or "", re.MULTILINE)


def values() -> Iterator[tuple[str, argparse.Action]]:
    """Every option and argument, with the name of its command."""
    for name, parser in PARSERS.items():
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction | argparse._VersionAction):
                yield name, action


@pytest.mark.parametrize(("name", "action"), [pytest.param(*each, id=f"{each[0]} {each[1].dest}") for each in values()])
def test_every_option_has_help_and_states_its_default(name: str, action: argparse.Action) -> None:
    assert action.help, "without help"
    assert re.match(r"[a-zA-Z`]", action.help)
    takes_value = action.nargs != 0
    optional = bool(action.option_strings) and not action.required
    repeated_or_file = isinstance(action, argparse._AppendAction) or action.default in (None, [], "")
    if takes_value and optional and not repeated_or_file:
        assert "default: " in action.help


def test_a_default_of_weights_is_not_promised_where_there_is_none() -> None:
    texts = [action.help or "" for _, action in values() if "--weights" in action.option_strings]
    assert texts
    for text in texts:
        assert "torchvision network, required for such a network" in text or "default: random" in text


def test_measured_quantities_have_a_unit() -> None:
    units = {"seconds": "second", "timeout": "second", "minutes": "minute", "size": "pixel", "sizes": "pixel"}
    for name, action in values():
        for option, unit in units.items():
            if f"--{option}" in action.option_strings:
                assert unit in (action.help or ""), f"{name} --{option}: {action.help}"
        if action.metavar == "S":
            assert "second" in (action.help or ""), f"{name} {action.dest}: {action.help}"
        if action.metavar == "HZ":
            assert re.search(r"per second|Hz", action.help or ""), f"{name} {action.dest}: {action.help}"


def test_every_verb_is_listed_under_a_heading() -> None:
    text = build_parser().format_help()
    assert [heading for heading in GROUPS if f"\n{heading}:\n" not in text] == []
    assert [verb for verb in VERBS if len(re.findall(rf"^  {verb} {{2,}}\w", text, re.MULTILINE)) != 1] == []


def test_commands_in_help_are_not_broken_at_hyphens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for parser in PARSERS.values():
        assert "multi-\n" not in parser.format_help()


def test_every_module_of_a_command_is_declared() -> None:
    """A command that is not listed cannot be called; nothing else would notice it."""
    folder = Path(cli.__file__).parent
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    verbs = {name for name, text in texts.items() if "\ndef add_parser(" in text}
    declared = {MODULES.get(verb, verb) for verb in VERBS}
    assert verbs == declared, "list a new verb in GROUPS of multi_dnn_ros/cli/main.py"


#: Parameters of the node whose options have only some of the values, or others as well: a publisher has no QoS auto.
PARTLY = {"precision", "decoder", "qos"}


@pytest.mark.parametrize("section", [NodeConfig, CameraConfig, DnnConfig])
def test_an_option_named_after_a_parameter_has_its_values(section: type[BaseModel]) -> None:
    schemas = section.model_json_schema()["properties"]
    for name, parser in PARSERS.items():
        for action in parser._actions:
            allowed = schemas.get(action.dest, {}).get("enum")
            if allowed and action.choices and action.dest not in PARTLY:
                assert list(action.choices) == allowed, f"{name}: {action.option_strings[0]} and the schema differ"
