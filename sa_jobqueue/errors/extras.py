"""The command that installs an extra: by its packages until the package index has this library, then by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Final

from sa_jobqueue.version import PUBLISHED

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION: Final = "sa-jobqueue"


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    While the library is not published, it names the packages that are missing, by the metadata of the installed library: pip
    would look for the library on the index, where anyone can register its name.
    """
    if PUBLISHED:
        return f'pip install "{DISTRIBUTION}[{extra}]"'
    try:
        packages = list(_requirements(DISTRIBUTION, [extra]))
    except metadata.PackageNotFoundError:
        packages = []
    if not packages:
        return f'pip install -e ".[{extra}]" in the checkout'
    missing = [package for package in packages if not _is_met(package)] or packages
    return " ".join(["pip install", *(f'"{_written(package)}"' for package in missing)])


def _requirements(distribution: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements of extras of an installed distribution; extras of the distribution itself are resolved."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for line in metadata.requires(distribution) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if (
            marker is None
            or marker.evaluate({"extra": ""})
            or not any(marker.evaluate({"extra": extra}) for extra in extras)
        ):
            continue
        if canonicalize_name(requirement.name) == canonicalize_name(distribution):
            yield from _requirements(distribution, requirement.extras)
        else:
            yield requirement


def _is_met(requirement: Requirement) -> bool:
    """Return whether the environment has a package in a version that is accepted, with what its extras require."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    if not requirement.specifier.contains(version, prereleases=True):
        return False
    return all(map(_is_met, _requirements(requirement.name, requirement.extras)))


def _written(requirement: Requirement) -> str:
    """Return a requirement without its marker, its lower bound first."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{','.join(sorted(map(str, requirement.specifier), reverse=True))}"
