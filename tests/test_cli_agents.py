"""What agents read: help with examples that parse, errors as JSON, schemas, and a skill page that tells no lies."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gwatch.cli.examples import EXAMPLES
from gwatch.cli.main import COMMANDS, Parser, main
from gwatch.cli.schema import SCHEMAS, schema_text
from gwatch.cli.skill import skill_text

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "gwatch").rglob("*.py"))


def parses(line: str) -> None:
    """Does the command's own parser take this command line?"""
    import importlib

    program, name, *arguments = shlex.split(line)
    assert program == "gwatch"
    parser = Parser(prog=name)
    importlib.import_module(COMMANDS[name][0]).add_arguments(parser)
    parser.parse_args(arguments)


def skill_lines() -> list[str]:
    """Every command line in the skill page that gives a command arguments."""
    found = re.findall(r"`(gwatch [^`]+)`", skill_text().replace("\\|", "|"))
    return [line for line in (text.split(" | ")[0] for text in found) if len(shlex.split(line)) > 2]


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_two_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert lines[-3:] == ["examples:", *(f"  {line}" for line in EXAMPLES[name])]


@pytest.mark.parametrize("line", [line for pair in EXAMPLES.values() for line in pair])
def test_examples_parse(line: str) -> None:
    parses(line)


def test_an_error_is_an_object_under_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", str(tmp_path / "none.json"), "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)
    assert error == {"code": "no-file", "message": f"{tmp_path / 'none.json'}: No such file or directory",
                     "hint": "give a report that File.render wrote as .json or .gwatch", "candidates": []}
    assert err.startswith("gwatch: [no-file] ") and err.count("\n") == 1
    assert main(["show", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().out == ""


def test_candidates_are_values_that_would_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["shwo", "x", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["candidates"][0] == "show"
    assert main(["schema", "trase", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["candidates"] == list(SCHEMAS)
    seeds = sorted((ROOT / "tests").rglob("*.cubin"))
    assert seeds
    assert main(["rewrite", str(seeds[0]), "--kernel", "no such kernel", "--list", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["code"] == "kernel-not-found" and error["candidates"]
    name = error["candidates"][0]
    assert main(["rewrite", str(seeds[0]), "--kernel", f"^{re.escape(name)}$", "--site", "op:NOSUCH", "--json",
                 "-o", str(tmp_path / "o.cubin")]) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["code"] == "site-none" and all(c.startswith("op:") for c in error["candidates"])
    assert main(["rewrite", str(seeds[0]), "--kernel", f"^{re.escape(name)}$", "--list", "--json", "--only",
                 error["candidates"][0][3:]]) == 0


@pytest.mark.parametrize(("arguments", "as_json"), [
    (["show", "--no-such-option", "x.json", "--json"], True), (["show", "x.json", "--no-such-option"], False),
    (["trace", "--launch", "x", "--", "prog", "--json"], False),
    (["trace", "--launch", "x", "--json", "--", "prog"], True)])
def test_wrong_arguments_are_objects_too(arguments: list[str], as_json: bool,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out = capsys.readouterr().out
    assert (json.loads(out)["code"] == "usage") if as_json else out == ""


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_schemas(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["schema", name]) == 0
    text = capsys.readouterr().out
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    assert main(["schema", name, "-o", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text() == text


def test_the_trace_schema_accepts_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from gwatch.common.format import File, Section_IntraKernelTrace

    section = Section_IntraKernelTrace()
    section.add_run({"kernel_prototype": "k", "trace_results": [
        {"global_tid": 0, "site_id": s, "value": 0, "timestamp": 10 * s} for s in range(2)]}, [(0, 1, "a")])
    report = File()
    report.add_section(section)
    report.render(tmp_path / "t.json")
    assert main(["schema", "trace"]) == 0
    schema = json.loads(capsys.readouterr().out)
    data = json.loads((tmp_path / "t.json").read_text())
    jsonschema.validate(data, schema)
    del data["sections"][1]["data"]["runs"][0]["analysis"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_the_skill_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == skill_text()
    assert main(["skill", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "gwatch", "text": skill_text()}
    assert main(["skill", "-o", str(tmp_path / "SKILL.md")]) == 0
    assert (tmp_path / "SKILL.md").read_text() == skill_text()
    head = re.match(r"---\nname: gwatch\ndescription: (.+)\n---\n", skill_text())
    assert head and len(head[1]) < 1024 and skill_text().isascii()


def test_the_skill_page_has_commands() -> None:
    assert len(skill_lines()) > 20 and {shlex.split(line)[1] for line in skill_lines()} >= {
        "trace", "show", "rewrite", "inspect", "diff"}


@pytest.mark.parametrize("line", skill_lines())
def test_commands_of_the_skill_parse(line: str) -> None:
    parses(line)


def test_codes_and_findings_of_the_skill_exist() -> None:
    table = skill_text().split("| code | cure |")[1].split("\n\n")[0]
    codes = re.findall(r"`([a-z]+(?:-[a-z]+)+|registers|predicates)`", "\n".join(
        row.split("|")[1] for row in table.split("\n")[2:]))
    assert len(codes) > 15
    assert [code for code in codes if f'"{code}"' not in SOURCES] == []
    findings = re.findall(r"finding `([a-z-]+)`", skill_text())
    assert len(findings) == 3 and [f for f in findings if f'"{f}"' not in SOURCES] == []


def test_the_skill_page_is_short() -> None:
    assert len(skill_text().splitlines()) <= 140 and len(skill_text()) <= 11_500


def test_rules_and_pipes_of_the_skill_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = skill_text().split("```toml\n")[1].split("```")[0]
    (tmp_path / "rules.toml").write_text(rules)
    keys = re.findall(r"^(\w+) = ", rules, re.MULTILINE)
    assert set(keys) == {"kernel", "require", "forbid", "max_registers", "fail_on"}
    seed = ROOT / "examples/cuda/trace/matmul_sm90.cubin"
    assert main(["inspect", str(seed), "--rules", str(tmp_path / "rules.toml")]) == 1
    assert "LDG.E.128 >= 2" in capsys.readouterr().out
    (line,) = re.findall(r"jq -r '([^']+)'", skill_text())
    assert line == ".scope_stats[] | [.scope_label, .p50] | @tsv"
    show = json.loads(schema_text("show"))["properties"]
    assert {"scope_stats", "unit", "t_zero", "cost_per_record", "cost_unknown"} <= set(show)


def test_the_python_lines_of_the_skill_work() -> None:
    pytest.importorskip("pandas")
    line, call = re.findall(r"`(from gwatch\.common\.format import File)` and `(File\.load\([^`]+)`", skill_text())[0]
    trace = ROOT / "examples/cuda/trace/matmul_h200.gwatch"
    space: dict[str, Any] = {}
    exec(f"{line}\nframe = {call.replace('t.json', str(trace))}", space)
    assert len(space["frame"]) == 4096


def test_figures_of_the_skill_are_those_of_the_code() -> None:
    from gwatch.common.format.findings import PROBE_SHARE, TIMER_STEP_NS
    from gwatch.cuda.program.options import STEADY
    from gwatch.cuda.xtrace.options import DEFAULT_DEPTH

    text = skill_text()
    assert f"steps by {TIMER_STEP_NS} ns" in text and f"newest {DEFAULT_DEPTH} records" in text
    assert PROBE_SHARE == 0.25 and "shorter than four of them" in text
    assert STEADY == 3 and "the third launch of a shape" in text


def test_commands_of_the_agents_page_parse() -> None:
    text = (ROOT / "gwatch" / "cli" / "AGENTS.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```\n(.+?)```", text, re.DOTALL))
    lines = re.findall(r"`(gwatch [^`]+)`", text) + re.findall(r"^(gwatch .+)$", blocks, re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        parses(line)
