"""Options for the settings of queues and job types, from their declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from sa_jobqueue.cli._options import duration
from sa_jobqueue.cli._output import shown
from sa_jobqueue.operations import QueueStatus, TypeStatus
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.registry.settings import Limits, settings_of

F = TypeVar("F", bound=Callable[..., Any])
_METAVARS: Final[dict[type, str]] = {int: "N", float: "N", timedelta: "DURATION", RateAlgorithm: "NAME"}


def setting_options(of: type[Limits]) -> Callable[[F], F]:
    """Return a decorator that gives a command an option for each setting of a class."""

    def decorate(command: F) -> F:
        for name, setting in reversed(settings_of(of).items()):
            words = f"{setting.help.rstrip('.')}; 'none' removes it."
            option = click.option(f"--{name.replace('_', '-')}", metavar=_METAVARS[setting.kind], help=words)
            command = option(command)
        return command

    return decorate


def read_settings(of: type[Limits], given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the given settings, with the default for `none`. Raises: click.BadParameter."""
    found: dict[str, Any] = {}
    for name, setting in settings_of(of).items():
        text = given[name]
        if text is None:
            continue
        if text == "none" and name in {"rate_limit", "retry_base"}:  # without it, its other settings have no meaning
            found |= {one: None for one in settings_of(of) if one.startswith(f"{name.partition('_')[0]}_")}
            continue
        try:
            found[name] = getattr(of, name) if text == "none" else _read(text, setting.kind)
        except click.BadParameter as error:
            error.param_hint = f"'--{name.replace('_', '-')}'"
            raise
    return found


def rate_text(one: QueueStatus | TypeStatus) -> str | None:
    """Return the rate limit as text; None without a limit."""
    if one.rate_limit is None or one.rate_period is None:
        return None
    burst = f", {one.rate_burst} at once" if one.rate_burst is not None else ""
    any_ = "any " if one.rate_algorithm == RateAlgorithm.SLIDING_WINDOW else ""
    return f"{one.rate_limit} in {any_}{shown(one.rate_period)}{burst}"


def _read(text: str, kind: type[Any]) -> Any:
    if kind is timedelta:
        return duration(text)
    try:
        return text if kind is RateAlgorithm else kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise click.BadParameter(f"{text!r} is neither {noun} nor 'none'") from None
