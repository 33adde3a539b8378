"""A build at real size: every module of Python's standard library, each after the modules it imports.

Run it with `python examples/build_graph.py`; `--limit 150` takes only so many modules. One transaction enqueues a job for
each module, blocked by the jobs of its imports, and one that waits for all of them. A worker compiles the modules; then
the order is checked by the database's own times, and the program ends with status 1 if it was wrong.
"""

import argparse
import ast
import asyncio
import marshal
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, ForeignKey, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, mapped_column

from sa_jobqueue import AttemptContext, Blockers, JobMixin, JobQueue, Worker, WorkerOptions, enqueue_many, get_job
from sa_jobqueue.events import JobCompleted
from sa_jobqueue.ids import uuid7
from sa_jobqueue.testing.servers import open_server

CONCURRENCY = 8
LIBRARY = Path(sysconfig.get_path("stdlib"))
Graph = dict[str, list[str]]
"""Modules, each with those that it needs, both sorted."""


# The application: a queue, a table, two handlers.


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base, queue_prefix="build_"):
    pass


class Built(Base):
    """A module that was compiled. Its key is not the name: one that was built twice would show."""

    __tablename__ = "built"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))
    bytecode_bytes: Mapped[int]


jobs = JobQueue(Job)


@dataclass
class Module:
    name: str
    path: str


@jobs.handler("compile_module")
def compile_module(module: Module, session: Session, ctx: AttemptContext) -> int:
    """Compile one module. Its row and its completion are one commit, after which those that wait for it may start."""
    code = compile((LIBRARY / module.path).read_bytes(), module.path, "exec")
    size = len(marshal.dumps(code))
    session.add(Built(name=module.name, job_id=ctx.job.id, bytecode_bytes=size))
    return size


@jobs.handler("link")
def link(sizes: Blockers[list[int]]) -> int:
    """Run when all modules are built, with what each of their jobs returned."""
    return sum(sizes.outputs)


# The graph: what each module imports when it is imported itself.


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Give the imports that run with the module: all but those in functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node)


def meant(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[list[str]]:
    """Give for each name in an import the modules it may mean, the likeliest first."""
    if isinstance(node, ast.Import):
        yield from ([alias.name] for alias in node.names)
        return
    base = package[: len(package) - node.level + 1] if node.level else []
    start = ".".join([*base, *([node.module] if node.module else [])])
    # `from a import b` needs the module a.b where there is one, else a.
    yield from ([f"{start}.{alias.name}", start] for alias in node.names)


class Library:
    """The modules there are, by name, and what each imports when it is imported itself."""

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        for path in sorted(LIBRARY.rglob("*.py")):
            parts = path.relative_to(LIBRARY).with_suffix("").parts
            if parts[0] in sys.stdlib_module_names and not {"test", "tests", "idle_test"} & set(parts):
                self.paths[".".join(parts).removesuffix(".__init__")] = path

    @cache  # noqa: B019 - it lives as long as the program
    def needed(self, name: str) -> list[str]:
        path, parts = self.paths[name], name.split(".")
        package = parts if path.name == "__init__.py" else parts[:-1]
        imported = set()
        for node in imports(ast.parse(path.read_bytes())):
            for choices in meant(node, package):
                imported.update(next(([module] for module in choices if module in self.paths), []))
        return sorted(imported - {name})

    def graph(self, limit: int | None) -> Graph:
        """Return the whole graph, or so many modules: the first by name, and before the next what those import."""
        chosen: set[str] = set()
        for name in self.paths:
            stack = [name]
            while stack and len(chosen) < (limit or len(self.paths)):
                chosen.add(module := stack.pop())
                stack += [imported for imported in self.needed(module) if imported not in chosen]
        return {name: [module for module in self.needed(name) if module in chosen] for name in sorted(chosen)}


@dataclass
class Untangled:
    """A graph without cycles, and what that took."""

    graph: Graph
    knots: list[list[str]]
    """Modules that import each other, directly or not: the strongly connected components of more than one."""
    dropped: list[tuple[str, str]]
    """Imports left out, each of a module that was being imported already."""


def untangle(graph: Graph) -> Untangled:
    """Walk the graph in the order of the names, as imports would, and leave out each import that leads back.

    The knots are found on the same walk: Tarjan's algorithm, without recursion, for imports go deeper than that.
    """
    place: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []  # visited, and their knot not complete yet
    kept_imports: Graph = {name: [] for name in graph}
    knots, dropped = [], []
    for root in graph:
        path = [(root, iter(graph[root]))] if root not in place else []
        being_imported = {root}
        while path:
            name, imports_left = path[-1]
            if name not in place:
                place[name] = lowest[name] = len(place)
                open_modules.append(name)
            for needed in imports_left:
                if needed in being_imported:
                    dropped.append((name, needed))
                else:
                    kept_imports[name].append(needed)
                if needed not in place:
                    path.append((needed, iter(graph[needed])))
                    being_imported.add(needed)
                    break
                if needed in open_modules:
                    lowest[name] = min(lowest[name], place[needed])
            else:
                path.pop()
                being_imported.discard(name)
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[name])
                if lowest[name] == place[name]:
                    start = open_modules.index(name)
                    knot = sorted(open_modules[start:])
                    del open_modules[start:]
                    knots += [knot] if len(knot) > 1 else []
    return Untangled(kept_imports, knots, dropped)


def longest_path(graph: Graph) -> list[str]:
    @cache
    def depth(name: str) -> int:
        return 1 + max(map(depth, graph[name]), default=0)

    sys.setrecursionlimit(10_000)
    path = [max(graph, key=depth)]
    while graph[path[-1]]:
        path.append(max(graph[path[-1]], key=depth))
    return path


# The build.


def enqueue_build(engine: Engine, graph: Graph, paths: dict[str, Path]) -> UUID:
    """Enqueue everything in one transaction; return the id of the job that waits for all."""
    ids = {name: uuid7() for name in graph}
    module_jobs = [
        compile_module.job(
            Module(name, str(paths[name].relative_to(LIBRARY))),
            id=ids[name],
            blockers=[ids[module] for module in needed],  # a job itself would do as well; here each may come before those
        )
        for name, needed in graph.items()
    ]
    last = link.job(blockers=module_jobs)
    with Session(engine) as session, session.begin():
        enqueue_many(session, [*module_jobs, last])  # a circle left in the graph would be refused here
    return last.id


def work(engine: Engine, count: int, console: Console) -> None:
    worker = Worker(jobs, engine, options=WorkerOptions(concurrency=CONCURRENCY))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("compiling", total=count)
        worker.events.subscribe(lambda event: bar.advance(task) if isinstance(event, JobCompleted) else None)
        asyncio.run(worker.run_until_idle())


def faults(engine: Engine, graph: Graph, last: UUID) -> list[str]:
    """Check by the database alone that all was built, once, and in order; return the errors."""
    edge, waiting, waited_for = Job.Blocker, aliased(Job), aliased(Job)
    pairs = (
        select(func.count(), func.count().filter(waiting.started_at >= waited_for.completed_at))
        .select_from(edge)
        .join(waiting, waiting.id == edge.job_id)
        .join(waited_for, waited_for.id == edge.blocked_by_chain_id)
    )
    expected = sum(map(len, graph.values())) + len(graph)
    with Session(engine) as session:
        errors = []
        there, in_order = session.execute(pairs).one()
        if (there, in_order) != (expected, expected):
            errors.append(f"{expected:,} jobs were to wait for another: {there:,} did, {in_order:,} until it had completed")
        built = sorted(session.scalars(select(Built.name)))
        if built != sorted(graph):
            errors.append(f"{len(graph):,} modules were to be built once: {len(set(built)):,} were, {len(built):,} times")
        total = session.scalar(select(func.sum(Built.bytecode_bytes)))
        output = get_job(session, last, model=Job).output
        if output != total:
            errors.append(f"the modules are {total} bytes, the last job received {output}")
    return errors


def report(console: Console, untangled: Untangled, seconds: float) -> None:
    graph = untangled.graph
    path = longest_path(graph)
    knots = ", ".join(f"{len(knot)} around {knot[0]}" for knot in untangled.knots)
    console.print(f"modules        {len(graph):,}")
    console.print(f"imports        {sum(map(len, graph.values())) + len(untangled.dropped):,}")
    console.print(f"cycles         {len(untangled.knots)} knots of modules that import each other ({knots})")
    console.print(f"left out       {len(untangled.dropped)} imports, so that none is left")
    console.print(f"longest path   {len(path)} modules: {' > '.join(path)}")
    console.print(f"built          in {seconds:.1f} s, {(len(graph) + 1) / seconds:,.0f} jobs/s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the standard library, each module after those it imports.")
    parser.add_argument("--limit", type=int, help="so many modules only")
    limit = parser.parse_args().limit
    console = Console(highlight=False, soft_wrap=True)
    library = Library()
    untangled = untangle(library.graph(limit))
    with open_server() as server:
        engine = create_engine(server.url, pool_size=CONCURRENCY)
        Base.metadata.create_all(engine)
        last = enqueue_build(engine, untangled.graph, library.paths)
        started = time.monotonic()
        work(engine, len(untangled.graph) + 1, console)
        report(console, untangled, time.monotonic() - started)
        errors = faults(engine, untangled.graph, last)
        engine.dispose()
    for fault in errors:
        console.print(f"WRONG          {fault}")
    if not errors:
        console.print("verified       every module was built once, none before all it imports had completed")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
