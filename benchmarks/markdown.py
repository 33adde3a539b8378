"""The document of a run as Markdown: its machine, the systems beside each other, ours beside its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.peers.catalogue import CONNECTION, OBJECTS, OURS
from benchmarks.targets import Figures, all_targets

BEGIN = "<!-- measured: written by python -m benchmarks table -->"
END = "<!-- end of measured -->"
"""Between them lies the table of `docs/benchmarks.md`."""
_COSTS = ("client us", "server us", "statements", "commits", "WAL bytes")
_LIMIT = "pgbench, our SQL"
_OBJECTS = "sa_jobqueue, `session.add` and `enqueue_many`"
_CONNECTION = "sa_jobqueue, `handler.enqueue` in AUTOCOMMIT"


def write_summary(document: Mapping[str, Any]) -> str:
    """Return the tables of the documentation's page."""
    summary = [
        *_setting(document),
        "### Beside other systems",
        _systems(document, Figures(document)),
        "### What a job adds to a transaction",
        _additions(document),
    ]
    return "\n\n".join(summary) + "\n"


def write(document: Mapping[str, Any]) -> str:
    """Return all tables of a run."""
    figures = Figures(document)
    parts = [
        write_summary(document).rstrip(),
        "### What it costs a job",
        _costs(document, figures),
        "### What it costs to enqueue a job",
        _enqueue_costs(document, figures),
        *_missing(document),
        "### What they promise",
        _promises(document),
        "### Targets",
        _targets(document),
        "### With a held-back xmin horizon",
        _pins(document),
    ]
    return "\n\n".join(parts) + "\n"


def into_page(page: str, table: str) -> str:
    """Return a page with the table in the place of an earlier one. Raises: ValueError without that place."""
    before, start, remainder = page.partition(BEGIN)
    _, end, after = remainder.partition(END)
    if not start or not end:
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table.strip()}\n\n{END}{after}"


def _setting(document: Mapping[str, Any]) -> Iterator[str]:
    machine, versions, settings = document["machine"], document["versions"], document["server"]["settings"]
    yield (
        f"{machine['cpus']} CPUs ({machine['architecture']}), client and server on the same machine over a Unix socket; "
        f"PostgreSQL {versions['postgresql']}, Python {versions['python']}, SQLAlchemy {versions['sqlalchemy']}, "
        f"psycopg {versions['psycopg']}; load {machine['load_before']:.1f} when it began."
    )
    yield "Server: " + ", ".join(f"`{name}={value}`" for name, value in settings.items()) + "."


def _systems(document: Mapping[str, Any], figures: Figures) -> str:
    def row(name: str, label: str) -> list[str]:
        drain = figures.case("drain beside peers", name)
        return [
            label,
            _spread(drain),
            _number(1 / drain["ratio"] if drain and drain["ratio"] else None, ".1f"),
            _number(figures.rate("single enqueue beside peers", name), ",.0f"),
            _number(figures.rate("bulk enqueue beside peers", name), ",.0f"),
            *(_number(figures.figure("latency beside peers", name, f"p{percent}_ms"), ".2f") for percent in (50, 99)),
        ]

    head = ["system", "drain, jobs/s (min-max)", "ours is times", "enqueue 1 a commit, /s", "bulk 10,000, /s"]
    head += ["commit to start, p50 ms", "p99 ms"]
    limit = row(_LIMIT, "the limit: `pgbench` with our SQL")
    return _table(head, [*_each(document, row), *_others(row), limit], text_columns=1)


def _others(row: Callable[[str, str], list[str]]) -> list[list[str]]:
    return [row(OBJECTS.name, _OBJECTS), row(CONNECTION.name, _CONNECTION)]


def _enqueue_costs(document: Mapping[str, Any], figures: Figures) -> str:
    scenarios = ("single enqueue beside peers", "bulk enqueue beside peers")
    costs = {"client_cpu_us": ",.0f", "server_cpu_us": ",.0f", "round_trips": ".3f", "commits": ".3f", "wal_bytes": ",.0f"}

    def row(name: str, label: str) -> list[str]:
        cells = [
            _number(figures.per_job(scenario, name, cost), shape) for scenario in scenarios for cost, shape in costs.items()
        ]
        return [label, *cells]

    head = [f"{how}: {cost_heading}" for how in ("1 a commit", "bulk") for cost_heading in _COSTS]
    return _table(["system", *head], [*_each(document, row), *_others(row)], text_columns=1)


def _costs(document: Mapping[str, Any], figures: Figures) -> str:
    def row(name: str, label: str) -> list[str]:
        def cost(cost_name: str, shape: str) -> str:
            return _number(figures.per_job("drain beside peers", name, cost_name), shape)

        return [
            label,
            cost("client_cpu_us", ".1f"),
            cost("server_cpu_us", ".1f"),
            cost("round_trips", ".3f"),
            cost("commits", ".3f"),
            cost("wal_bytes", ",.0f"),
            cost("row_versions", ".2f"),
            cost("dead_tuples", ".2f"),
            _number(figures.figure("idle worker", name, "statements_a_second"), ".1f"),
            _number(figures.figure("idle worker", name, "client_core_percent"), ".2f"),
        ]

    head = ["system", *_COSTS, "row versions", "dead tuples"]
    head += ["idle: statements/s", "idle: % of a core"]
    return _table(head, [*_each(document, row), row(_LIMIT, "the limit: `pgbench` with our SQL")], text_columns=1)


def _additions(document: Mapping[str, Any]) -> str:
    rows = [
        [
            result["case"],
            _number(result["figures"].get("cpu_us"), ",.0f"),
            _number(result["per_job"]["client_cpu_us"], ",.0f"),
            _number(result["per_job"]["server_cpu_us"], ",.0f"),
            _number(result["ratio"], ".2f"),
            result["against"] or "",
        ]
        for result in document["results"]
        if result["scenario"] in {"transaction", "bulk transaction"}
    ]
    head = ["transaction", "CPU time, us", "client", "server", "added", "times what this adds"]
    return _table(head, rows, text_columns=1)


def _each(document: Mapping[str, Any], row: Callable[[str, str], list[str]]) -> Iterator[list[str]]:
    for system in document["systems"]:
        if system["missing"] is None:
            label = f"{system['name']} {system['version']}"
            yield row(system["name"], f"**{label}**" if system["name"] == OURS.name else label)


def _missing(document: Mapping[str, Any]) -> Iterator[str]:
    missing = [
        f"- {system['name']} {system['version']}: {system['missing']}" for system in document["systems"] if system["missing"]
    ]
    failed = [f"- {name}: {why.splitlines()[0]}" for name, why in document["failed"].items()]
    if missing or failed:
        yield "Not measured:\n\n" + "\n".join(missing + failed)


def _promises(document: Mapping[str, Any]) -> str:
    head = ["system", "runs on", "set up as", "a lost worker may still finish", "jobs of a dead worker come back"]
    head += ["what is kept", "enqueued in your transaction", "survives a power cut"]
    rows = [
        [
            f"{system['name']} {system['version']}",
            system["python"] or "",
            system["settings"],
            *(system["promises"][name] for name in ("fenced", "rescued", "retained", "session", "durable")),
        ]
        for system in document["systems"]
    ]
    head[3] = "fenced"
    return _table(head, rows, text_columns=len(head))


def _targets(document: Mapping[str, Any]) -> str:
    words = {True: "yes", False: "**no**", None: ""}
    rows = [[target.name, target.target, target.measured, words[target.is_met]] for target in all_targets(document)]
    return _table(["what", "target", "measured", "met"], rows, text_columns=2)


def _pins(document: Mapping[str, Any]) -> str:
    rows = [
        [
            result["scenario"],
            result["case"],
            *(_number(result["figures"].get(name), shape) for name, shape in _PIN_FIGURES.items()),
            _number(result["ratio"], ".2f"),
        ]
        for result in document["results"]
        if result["scenario"] == "held-back horizon"
    ]
    return _table(
        ["scenario", "claims of one job", "p50 ms", "p99 ms", "pages", "against the first, p50"], rows, text_columns=2
    )


_PIN_FIGURES = {"p50_ms": ".3f", "p99_ms": ".3f", "buffers": ",.0f"}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int) -> str:
    rules = ["---" if number < text_columns else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rules, *rows))


def _spread(result: Mapping[str, Any] | None) -> str:
    if result is None or result["rate"] is None:
        return ""
    rate = result["rate"]
    return f"{rate['median']:,.0f} ({rate['min']:,.0f}-{rate['max']:,.0f})"


def _number(value: float | None, shape: str) -> str:
    return "" if value is None else format(value, shape)
