"""`python -m tests.build.importing ARGUMENTS` runs `seed ARGUMENTS`, then prints the packages it imported."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

# Imported if they are installed, but not required: by setuptools in every Python, and by grpc.
_OPTIONAL = ("_distutils_hack", "grpc_health")


def imported_packages() -> list[str]:
    """The top-level names of the modules that this process has imported from installed packages."""
    sites = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    found = {name.partition(".")[0] for name, file in files.items() if file and set(Path(file).parents) & set(sites)}
    return sorted(found - {"seedcli", *_OPTIONAL})


def unlisted(packages: Iterable[str], requirements: Iterable[str]) -> set[str]:
    """The imported packages that neither the requirements nor their dependencies install."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    held: set[str] = set()
    pending = [(Requirement(text), "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement, extra = pending.pop()
        if (str(requirement), extra) in seen or (
            requirement.marker and not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        seen.add((str(requirement), extra))
        held.add(canonicalize_name(requirement.name))
        for text in distribution(requirement.name).requires or ():
            pending += [(Requirement(text), wanted) for wanted in ("", *requirement.extras)]
    known = packages_distributions()
    return {name for name in packages if not held & {canonicalize_name(each) for each in known.get(name, ())}}


if __name__ == "__main__":
    from seedcli.__main__ import run

    status = run()
    print(json.dumps(imported_packages()))
    sys.exit(status)
