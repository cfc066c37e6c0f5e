"""Links, anchors, files, modules and commands that README and docs/ name exist."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from seedcli.cli.main import app
from seedcli.config.choices import CHOICES
from seedcli.config.presets import preset_layers
from seedcli.suites.suite import load_suite
from seedcli.suites.sweep import load_sweep

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def without_code(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def defined(path: Path) -> set[str]:
    """The names that a file defines or imports at its top level, or for type checking; the file is not run."""
    found: set[str] = set()
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    guarded = [inner for node in nodes if isinstance(node, ast.If) for inner in node.body]
    for node in nodes + guarded:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found


def resolves(name: str) -> bool:
    """Whether a dotted name is a package or module of seedcli, or a name that one of them defines."""
    path = ROOT / Path(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module = path.parent / "__init__.py" if path.parent.is_dir() else path.parent.with_suffix(".py")
    return module.is_file() and path.name in defined(module)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    text = without_code(page.read_text(encoding="utf-8"))
    for link in re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', text):
        target, _, anchor = (link[0] or link[1]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


@pages
def test_links_name_titles_not_files(page: Path) -> None:
    """The site has no page named "pong.md"."""
    assert not re.findall(r"\[[^]`]*\.md\]\(", without_code(page.read_text(encoding="utf-8")))


@pages
def test_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?<![\w/.])(?:seedcli/[\w/.]*\w/?|\w+/[\w/]+\.py)\b", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


ENTRY_POINTS = {registry.group for registry in CHOICES.values()}


@pages
def test_named_modules_exist(page: Path) -> None:
    text = re.sub(r"seedcli\.envs\.\w+:", "", page.read_text(encoding="utf-8"))
    for name in sorted(set(re.findall(r"(?<![\w/.-])seedcli(?:\.[A-Za-z_]\w*)+", text))):
        assert name in ENTRY_POINTS or resolves(name), f"{page.name} names {name}"


SEED: Any = typer.main.get_command(app)


def commands(page: Path) -> Iterator[str]:
    """The commands of `seed` in the code blocks of a page, without comments, redirections and optional parts."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```(?:bash)?\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^seed .+$", block, flags=re.MULTILINE):
            yield re.sub(r"\[--.*?\]| [&>|] .*", "", line)


@pages
def test_commands_are_valid(page: Path) -> None:
    for line in commands(page):
        command = SEED
        name, *arguments = shlex.split(line, comments=True)
        while hasattr(command, "commands"):
            name, *arguments = arguments
            command = command.commands[name]
        given = command.make_context(name, arguments).params
        if given.get("preset"):
            preset_layers(given["preset"])


@pages
def test_what_guides_import_is_in_the_python_reference(page: Path) -> None:
    reference = (ROOT / "docs" / "python-reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: (\S+)$", reference, flags=re.MULTILINE))
    for module, names in re.findall(
        r"^from (seedcli[\w.]*) import \(?([\w\s,]+)", page.read_text("utf-8"), re.MULTILINE
    ):
        for name in filter(None, re.split(r"[\s,]+", re.split(r"\n(?=\n|from |import )", names)[0])):
            assert {module, f"{module}.{name}"} & listed, f"{page.name} imports {name} from {module}"


def test_the_reference_lists_every_command_and_extra() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = {line.split()[1] for line in commands(ROOT / "docs" / "reference.md")}
    assert set(SEED.commands) <= listed
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = page[page.index("## Extras") :]
    assert set(extras) <= set(re.findall(r"`([a-z]+)`(?=[^|]*\|)", table))


PROTOCOLS = [ROOT / "seedcli" / package / "base.py" for package in ("agents", "envs", "net")]


def protocols(source: str) -> dict[str, dict[str, list[str] | None]]:
    """The members of each protocol that a source defines: the arguments of methods, None for attributes."""
    found: dict[str, dict[str, list[str] | None]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            members = found[node.name] = {}
            for item in node.body:
                if isinstance(item, ast.AnnAssign):
                    members[ast.unparse(item.target)] = None
                elif isinstance(item, ast.FunctionDef):
                    members[item.name] = None if item.decorator_list else [each.arg for each in item.args.args]
    return found


def test_listed_protocols_are_those_of_the_code() -> None:
    code = {name: members for path in PROTOCOLS for name, members in protocols(path.read_text("utf-8")).items()}
    listed: dict[str, Any] = {}
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE):
            listed |= protocols(block)
    assert {"Agent", "VectorEnv", "ServerTransport", "ClientTransport"} <= set(listed)
    assert listed == {name: code[name] for name in listed}


def test_listed_suites_and_sweeps_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, sweep = tmp_path / "suite.toml", tmp_path / "sweep.toml"
    for path, name in ((suite, "benchmarks.md"), (sweep, "experiments.md")):
        blocks = re.findall(
            r"^```toml\n(.*?)^```$", (ROOT / "docs" / name).read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        path.write_text("\n".join(blocks))
    package = "import gymnasium\ngymnasium.register('MyEnv-v0', entry_point='x:X')\n"
    (tmp_path / "my_package.py").write_text(package)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(load_suite(str(suite)).tasks) == ["cartpole", "mine"]
    assert len(load_sweep(sweep).points) == 4
