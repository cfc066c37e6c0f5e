"""Coverage of the parsers' lines and branches by mutations."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import coverage

from tests.reliability.fuzz_parsers import fuzz_parsers

# Functions that parse a peer's bytes: mutations must reach all of their lines and branches.
PARSERS: dict[str, tuple[str, ...]] = {
    "seedcli.net.frames": ("unpack_header", "decode_control"),
    "seedcli.net.messages": (
        *("check_printable", "parse", "check_keys", "parse_redirect", "parse_goodbye", "parse_spec"),
    ),
    "seedcli.net.security.keys": ("TokenAuthenticator.answer", "is_hex"),
    "seedcli.net.handshake": ("NoAuthenticator.answer", "ServerHandshake.receive"),
    "seedcli.net.codecs": ("check_codecs", "ArrayCodec.check_length", "ArrayCodec.decode", "RowDecoder.decode"),
    "seedcli.serving.service": (*("destination", "take_row", "frame", "lost", "_heartbeat", "_admit", "fault"),),
    "seedcli.serving.handshakes": ("Handshakes.take", "Handshakes._begin", "Handshakes._configure"),
}
# Lines that no input reaches, and why.
EXEMPT = {
    # A learner that cannot build its agent ends, because of its configuration or machine, not of a peer's message.
    "raise  # the learner must stop, and the actor need not look for it",
    # zstd raises first for the same reason; the check is for libraries that might not.
    'raise ProtocolError(f"a block contains {len(content)} bytes, expected {self.max_bytes}")',
}


def fuzz_with_coverage(mutations: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Run `fuzz_parsers`; returns its result and a sentence for each line or branch of `PARSERS` not reached."""
    files = {str(Path(inspect.getfile(importlib.import_module(name)))): names for name, names in PARSERS.items()}
    measure = coverage.Coverage(data_file=None, branch=True, include=list(files), config_file=False)
    with measure.collect():
        result = fuzz_parsers(mutations, seed)
    missing = []
    for file, names in files.items():
        _, _, _, missed, _ = measure.analysis2(file)
        spans = _spans(Path(file), names)
        analysis = measure._analyze(file)
        text = Path(file).read_text().splitlines()
        exempt = {number for number, line in enumerate(text, 1) if line.strip() in EXEMPT}
        for name, (first, end) in spans.items():
            lines = [line for line in missed if first <= line <= end and line not in exempt]
            missing += [f"{Path(file).name}:{line} ({name}) was not reached" for line in lines]
            for source, targets in analysis.missing_branch_arcs().items():
                if first <= source <= end and source not in missed:
                    others = [target for target in targets if target not in missed]  # missed lines are named above
                    missing += [f"{Path(file).name}: from {source} to {to} ({name}) was not taken" for to in others]
    return result, missing


def _spans(file: Path, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """First and last line of each function, by its qualified or plain name."""
    found: dict[str, tuple[int, int]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                for name in (prefix + child.name, child.name):
                    if name in names:
                        found[name] = (child.body[0].lineno, child.end_lineno or child.lineno)

    visit(ast.parse(file.read_text()), "")
    assert set(found) == set(names), f"{file.name} has no {set(names) - set(found)}"
    return found
