"""Hooks for MkDocs: README, the changelog and the command line become pages of the site, and a link to a file of the
repository that is not a page leads to a page that shows this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {ROOT / "README.md": "index.md", ROOT / "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r'(?<=\]\()[^)#\s]+|(?<=src=")[^"]+')


def place(path: Path) -> str:
    """The path of a repository file on the site, relative to the site's root."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    return PAGES.get(path, f"files/{path.relative_to(ROOT).as_posix()}.md")


def linked_files(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / link).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    files.append(File.generated(config, "cli.md", content=cli_reference.page()))
    for page, name in PAGES.items():
        files.append(File.generated(config, name, content=page.read_text(encoding="utf-8")))
    for path in {path for page in [*PAGES, *(ROOT / "docs").glob("*.md")] for path in linked_files(page)}:
        if files.get_file_from_path(place(path)) is None:
            text = f"# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n````{path.suffix[1:]}\n{path.read_text()}\n````\n"
            files.append(File.generated(config, place(path), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite links for the site."""
    name = page.file.src_uri
    source = next((path for path, uri in PAGES.items() if uri == name), ROOT / "docs" / name)

    def lead(link: re.Match[str]) -> str:
        path = (source.parent / link[0]).resolve()
        return os.path.relpath(place(path), os.path.dirname(name)) if path.is_file() else link[0]

    return LINK.sub(lead, markdown)
