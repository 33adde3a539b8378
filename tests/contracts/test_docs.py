"""The documentation is correct: its code runs, its links lead somewhere, the tests and commands it names exist.

A page is run as one program, its lines where they are in the page, on a database with the tables of the ready-made `Job`, or
on an empty one if it has the line `<!-- empty database -->`. Engines that the page leaves open are disposed of at its end.

- a python block is run; one whose first line is `# some/file.py` is written there instead, to be imported further down;
- one whose first line is `# some/file.py, continued` is added to that file;
- a sql block is run;
- a sh block is run after `<!-- run -->`, and otherwise only its `sa-jobqueue` commands are checked;
- a text block after `<!-- prints -->`, or the line in `<!-- prints: a line -->`, is the last output of the code above it;
- `<!-- not run: why -->` before a block leaves it out.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from sa_jobqueue.db.urls import URL_VARIABLE
from sa_jobqueue.worker import WorkerOptions
from sa_jobqueue.worker.background import controls
from sa_jobqueue.worker.background.heartbeat import IDLE_MOST
from tests.fixtures.programs import Programs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("contributing/*.md"), *(ROOT / "docs").rglob("*.md")])
OWN_PAGES = [page for page in PAGES if "Written by scripts/reference" not in page.read_text()]
RUN_LANGUAGES = {"python", "sql"}
SHOWN_LANGUAGES = {"", "sh", "text", "dockerfile", "ini", "mermaid", "yaml"}
_LONG_GUIDES = (
    *("add-to-your-application", "archiving", "batches", "blockers", "chains", "codecs", "completing-without-a-worker"),
    "crash-tests",
    *("cpu-bound-handlers", "dashboard", "fairness-keys", "frameworks", "migrating", "migrations", "ordered-events"),
    *("priorities", "queues", "testing", "triage", "waiting"),
)
LONG = {"docs/tutorial.md", *(f"docs/guides/{name}.md" for name in _LONG_GUIDES)}
"""Pages that take longest, together longer than all the others: their code is left to the long run."""

STEPS = """
import atexit, contextlib, gc, io, os, signal, subprocess, sys, tempfile
from contextlib import suppress
from pathlib import Path

@atexit.register
def dispose_engines():
    from sqlalchemy import Engine
    for engine in [one for one in gc.get_objects() if isinstance(one, Engine)]:
        engine.dispose()

def create_tables():  # as the head of the guides says
    run_shell("sa-jobqueue migrate upgrade --pipeline")
    shown.seek(shown.truncate(0))

def write_file(path, text, mode="w"):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open(mode) as file:
        file.write(text.removeprefix("\\\\\\n"))

shown = io.StringIO()
contextlib.redirect_stdout(shown).__enter__()

def prints(text):
    text = text.removeprefix("\\\\\\n")  # a raw string keeps the first line's
    ended = shown.getvalue().endswith(text)
    assert ended, f"printed: {shown.getvalue()!r}, not {text!r}"
    shown.seek(shown.truncate(0))

def run_sql(script):
    import psycopg, sqlalchemy
    url = sqlalchemy.make_url(os.environ["SA_JOBQUEUE_URL"]).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        connection.execute(script)

def run_shell(script):
    bin = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": "."}
    # In a session of its own: what a script that failed left in the background ends with it.
    done = tempfile.TemporaryFile("w+")  # not a pipe: what runs on in the background would keep it open
    with done, subprocess.Popen(["sh", "-e", "-c", script], env=environment, start_new_session=True, stdout=done) as shell:
        status = shell.wait()
        done.seek(0)
        print(done.read(), end="")
        if status:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            raise SystemExit(f"exit status {shell.returncode}: {script}\\n{shown.getvalue()}")
"""


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def program_of(page: str) -> str:
    """Return a page as the program it is; each line of code keeps its number."""
    lines = page.split("\n")
    program = ["from doc_steps import create_tables, prints, run_shell, run_sql, write_file"]
    if "<!-- empty database -->" not in lines:
        program[0] += "; create_tables()"
    marker, language, inside = "", "", False
    for number, line in enumerate(lines):
        if inside:
            inside = line != "```"
            program.append(line if inside else "" if language == "python" else "''')" if language else "")
            if not language and inside:
                program[-1] = ""
        elif one_line := re.fullmatch(r"<!-- prints: (.+) -->", line):
            program.append(f"prints({one_line[1]!r} + '\\n')")
        elif line.startswith("```"):
            inside, language = True, line.removeprefix("```")
            shown_file = language == "python" and re.fullmatch(r"# ([\w./]+\.py)(, continued)?", lines[number + 1])
            if marker.startswith("<!-- not run:") or (language == "sh" and marker != "<!-- run -->"):
                language = ""
            elif shown_file:
                language = "file"
                program.append(f"write_file(mode={'a' if shown_file[2] else 'w'!r}, path={shown_file[1]!r}, text=r'''\\")
                continue
            elif language == "text" and marker == "<!-- prints -->":
                program.append("prints(r'''\\")
                continue
            elif language not in {"python", "sql", "sh"}:
                language = ""
            opening = {"python": "", "sql": "run_sql(r'''", "sh": "run_shell(r'''", "": ""}
            program.append(opening[language])
        else:
            marker = line or marker
            if number:
                program.append("")
    return "\n".join(program) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if relative(page) in LONG else [])
        for page in OWN_PAGES
        if "```python" in page.read_text()
    ],
    ids=relative,
)
def test_code_blocks_of_a_page_run(page: Path, tmp_path: Path, empty_database_url: str, programs: Programs) -> None:
    program = tmp_path / page.name.replace(".md", "_page.py")
    (tmp_path / "doc_steps.py").write_text(STEPS)
    program.write_text(program_of(page.read_text()))
    env = {URL_VARIABLE: empty_database_url}
    ended = programs.run(Path(program.name), cwd=tmp_path, env=env, into=tmp_path, timeout_seconds=240)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "ResourceWarning" not in ended.stderr, ended.stderr


def test_the_readme_is_one_screen_of_text_and_a_program() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert len(text.split()) <= 600
    pages = set(re.findall(r"\]\(([^)#]+\.md)", text))
    assert len(pages) <= 12
    assert "<!-- prints: " in text  # its program runs with the other pages, and prints what the page shows


def test_lists_and_tables_begin_after_an_empty_line() -> None:
    """Without one the site shows them as text, which GitHub does not."""
    start = re.compile(r"^(?![-|<#\s]|\d+\. )[^\n]+\n(?:- |1\. |\|).*", re.MULTILINE)
    texts = {page: re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE) for page in PAGES}
    assert [f"{relative(page)}: {match[0]}" for page, text in texts.items() for match in start.finditer(text)] == []


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Give each block of a page: the line before it, its language, its text."""
    for match in re.finditer(r"(?:^|\n)([^\n]*)\n+```(\w*)\n(.*?)\n```(?=\n|$)", page.read_text(), re.DOTALL):
        yield match[1], match[2], match[3]


def test_a_code_block_that_is_not_run_gives_a_reason() -> None:
    marked = [
        (relative(page), before)
        for page in PAGES
        for before, language, _ in blocks(page)
        if language in RUN_LANGUAGES and before.startswith("<!-- not run")
    ]
    assert len(marked) > 10
    assert [mark for mark in marked if not re.fullmatch(r"<!-- not run: .{10,} -->", mark[1])] == []


def test_every_block_is_found_by_the_tests_or_only_shown() -> None:
    unknown = []
    for page in PAGES:
        inside = ""
        for line in page.read_text().split("\n"):
            if inside:
                inside = "" if line == inside else inside
            elif fence := re.match(r" *```+", line):
                inside, language = fence[0], line[len(fence[0]) :]
                if language not in SHOWN_LANGUAGES and not (inside == "```" and language in RUN_LANGUAGES):
                    unknown.append((relative(page), line))
    assert unknown == []


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_the_docs_resolve() -> None:
    broken, checked = [], 0
    for page in PAGES:
        text = re.sub(r"```.*?\n```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            checked += 1
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append((relative(page), target))
    assert broken == []
    assert checked > 500


def test_guides_define_the_names_that_their_code_uses(tmp_path: Path) -> None:
    pages = [*(ROOT / "docs/guides").glob("*.md"), ROOT / "README.md", ROOT / "docs/tutorial.md"]
    for page in pages:
        code = [text for before, language, text in blocks(page) if language == "python" and "not run" not in before]
        (tmp_path / f"{page.stem.replace('-', '_')}.py").write_text("\n\n".join(code) + "\n")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise", "."]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stdout
    assert "F821" not in output, output


def test_pages_show_results_instead_of_assertions() -> None:
    asserted = [
        (relative(page), line)
        for page in OWN_PAGES
        for _, language, text in blocks(page)
        if language == "python" and not re.match(r"# (?:\w+/)*(?:test_\w+|conftest)\.py", text)
        for line in text.splitlines()
        if line.lstrip().startswith("assert ")
    ]
    assert asserted == []


def test_examples_name_the_hosts_of_the_style_page() -> None:
    own_hosts = {"localhost", "127.0.0.1", "db", "db1", "db2", ""}
    examples = "\n".join(text for page in OWN_PAGES for _, language, text in blocks(page) if language != "mermaid")
    hosts = set(re.findall(r"\b[a-z+]+://(?:[^\s/@]*@)?([\w.-]*)", examples))
    assert {host for host in hosts if host not in own_hosts and not host.endswith(".example") and host != "bucket"} == set()


@cache
def functions(path: str) -> set[str]:
    module = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_tests_named_in_the_docs_exist() -> None:
    references = [
        (relative(page), path, name)
        for page in PAGES
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    ]
    assert len(references) > 50
    assert [
        reference
        for reference in references
        if not (ROOT / reference[1]).exists() or (reference[2] and reference[2] not in functions(reference[1]))
    ] == []


def test_every_guarantee_names_its_tests() -> None:
    text = (ROOT / "docs/guaranteed.md").read_text()
    guarantees = re.findall(r"^\*\*(.+?)\*\*.*?(?=^\*\*|^## |\Z)", text, re.MULTILINE | re.DOTALL)
    parts = re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(guarantees) > 20
    assert [line[:60] for line in parts if not re.search(r"^- `tests/[\w/]+\.py::\w+`$", line, re.MULTILINE)] == []


def test_commands_shown_in_the_docs_parse() -> None:
    from sa_jobqueue.cli import main

    lines = [
        (page, line)
        for page in OWN_PAGES
        for _, language, text in blocks(page)
        if language == "sh"
        for line in text.replace("\\\n", " ").splitlines()
    ]
    assert len(lines) > 100
    refused = []
    for page, line in lines:
        try:
            check_command(main, line)
        except (AssertionError, click.ClickException, ValueError) as error:
            refused.append((relative(page), line, str(error)))
    assert refused == []


def check_command(main: click.Group, line: str) -> None:
    """Check that a line's `sa-jobqueue` command and its options exist."""
    words = shlex.split(line, comments=True)
    if "sa-jobqueue" not in words:
        return
    command: click.Command = main
    words = words[words.index("sa-jobqueue") + 1 :]
    while isinstance(command, click.Group):
        name = words.pop(0)
        subcommand = command.get_command(click.Context(command), name)
        assert subcommand is not None, line
        command = subcommand
    command.make_parser(click.Context(command)).parse_args([*words])


def test_examples_of_help_texts_are_understood() -> None:
    from sa_jobqueue.cli import main

    examples = [text for _, language, text in blocks(ROOT / "docs/reference/cli.md") if language == "sh"]
    assert len(examples) > 10
    for line in examples:
        check_command(main, line)


def test_scenarios_that_pages_name_exist() -> None:
    from benchmarks.scenarios import all_scenarios

    scenario_names = {scenario.name.replace(" ", "-") for scenario in all_scenarios()}
    mentioned = {name for page in PAGES for name in re.findall(r"--scenario ([a-z-]+)", page.read_text())}
    assert mentioned
    assert mentioned - scenario_names <= {"pipeline"}  # all scenarios whose names begin so


def test_the_architecture_names_files_that_exist_and_all_layers_from_the_top_down() -> None:
    page = (ROOT / "contributing/architecture.md").read_text()
    paths = re.findall(r"`([a-z_/]+\.py|[a-z_/]+/)`", page.replace("`sa_jobqueue/`", ""))
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / "sa_jobqueue" / path).exists()] == []
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    height = {
        name: -number
        for number, layer in enumerate(contracts[0]["layers"])
        for name in layer.split(" | ")
        if name != "version"
    }
    table = page[page.index("## All folders") : page.index("## Where to change what")]
    first_columns = re.findall(r"(?m)^\| (`.+?`) \|", table)
    rows = [[name.removesuffix(".py") for name in re.findall(r"`([a-z_]+)(?:/|\.py)`", cell)] for cell in first_columns]
    assert {name for row in rows for name in row} == {*height, "migrations"}
    heights = [max(height[name] for name in row) for row in rows if row != ["migrations"]]
    assert heights == sorted(heights, reverse=True)


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, remaining = {ROOT / "README.md"}, [ROOT / "README.md"]
    while remaining:
        page = remaining.pop()
        targets = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())}
        remaining += targets & set(PAGES) - reached
        reached |= targets
    fragments = {page for page in PAGES if page.parent.name == "changes"}
    assert set(PAGES) - fragments - reached == set()


def test_every_guide_is_two_clicks_from_the_readme() -> None:
    def linked(page: Path) -> set[Path]:
        return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())}

    near = linked(ROOT / "README.md")
    pages_found = near | set().union(*(linked(page) for page in near if page.exists()))
    assert set((ROOT / "docs/guides").glob("*.md")) - pages_found == set()
    assert ROOT / "docs/state-machine.md" in pages_found


@pytest.mark.slow
def test_the_reference_is_generated_from_the_docstrings() -> None:
    check("reference")


def check(script: str) -> None:
    """Run a script that writes a page, in its mode that checks whether the page is up to date."""
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr


def test_the_guide_states_how_long_settings_are_cached() -> None:
    page = (ROOT / "docs/guides/queues.md").read_text()
    heartbeat_interval = WorkerOptions().heartbeat_interval.total_seconds()
    assert f"; {heartbeat_interval:g} s where the notification was lost" in page
    assert f"and up to {IDLE_MOST:g} s if it has long been idle |" in page
    assert f"(`listen=False`, a pooler) | within {controls.READ_EVERY_ALONE:g} s |" in page
