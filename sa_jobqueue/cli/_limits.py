"""Options for limits, shared by `queues set` and `types set`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from sa_jobqueue.cli._options import duration
from sa_jobqueue.cli._output import shown
from sa_jobqueue.operations import QueueStatus, TypeStatus
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.registry.settings import LIMITS, QueueSettings, TypeSettings

GLOBAL_CONCURRENCY: Final = click.option(
    "--global-concurrency",
    metavar="N",
    help="Maximum number of jobs to run at a time, across all workers; 'none' removes it.",
)
RATE: Final = click.option(
    "--rate-limit", metavar="N", help="Maximum number of jobs to start per period, across all workers; 'none' removes it."
)
PERIOD: Final = click.option("--rate-period", metavar="DURATION", help="Period of --rate-limit, such as 1m.")
BURST: Final = click.option(
    "--rate-burst", metavar="N", help="Maximum number of jobs to start together after an idle time.  [default: --rate-limit]"
)
ALGORITHM: Final = click.option(
    "--rate-algorithm",
    metavar="NAME",
    help="token_bucket, or sliding_window (exact in any period).",
)


@contextmanager
def named(option: str) -> Iterator[None]:
    """Name the option in errors that the block raises."""
    try:
        yield
    except click.BadParameter as error:
        error.param_hint = f"'--{option.replace('_', '-')}'"
        raise


def rate_text(one: QueueStatus | TypeStatus) -> str | None:
    """Return the rate limit as text; None without a limit."""
    if one.rate_limit is None or one.rate_period is None:
        return None
    burst = f", {one.rate_burst} at once" if one.rate_burst is not None else ""
    any_ = "any " if one.rate_algorithm == RateAlgorithm.SLIDING_WINDOW else ""
    return f"{one.rate_limit} in {any_}{shown(one.rate_period)}{burst}"


def read_limits(current: QueueSettings | TypeSettings, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the limits: the given ones, with `none` as None; the current ones for the rest. Raises: click.BadParameter."""
    found: dict[str, Any] = {}
    for name in ("concurrency_per_key", *LIMITS):
        if name not in given:  # a job type has no keys
            continue
        text = given[name]
        if text is None:
            found[name] = getattr(current, name)
        elif text == "none":
            found[name] = None
        else:
            with named(name):
                found[name] = (
                    text if name == "rate_algorithm" else duration(text) if name == "rate_period" else _number(text)
                )
    if given["rate_limit"] == "none":  # without the limit, its other settings have no meaning
        found |= {"rate_period": None, "rate_burst": None, "rate_algorithm": None}
    return found


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a whole number nor 'none'") from None
