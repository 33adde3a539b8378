"""Chains by filters, and one chain: its jobs, its blockers as a tree, and the jobs that wait for it by type."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms, trees
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import MAX_VALUES, ParameterError
from sa_jobqueue.dashboard.rendering import short
from sa_jobqueue.dashboard.screens.base import PAGE, SEARCH_SECONDS, Act, Changes, Context, Screen, status_tabs
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.operations import ChainFilter, cancel_chains, delete_chains, list_chain_jobs, list_chains
from sa_jobqueue.operations.pages import BulkResult, collected
from sa_jobqueue.statements import chains
from sa_jobqueue.types import ENDED, JobId, JobStatus

COLUMNS: Final = (
    *("id", "type_name", "queue", "fairness_key", "status", "length", "last_type_name", "created_at", "completed_at"),
    "error",
)
CHAINS: Final = 500
"""Maximum number of chains in a tree."""
EDGES: Final = 500
"""Maximum number of edges of one kind that are read for one level of a tree."""
WAITING: Final = 3000
"""Maximum number of jobs that wait for a chain that are counted."""


def view(context: Context) -> dict[str, Any]:
    """Return one page of chains."""
    params = context.params
    where = ChainFilter(
        statuses=params.choices("status", JobStatus),
        types=params.texts("type"),
        queues=params.texts("queue"),
        top_level=params.flag("top_level"),
    )
    order = params.choice("order", ("newest", "oldest"))
    how: dict[str, Any] = {"where": where, "columns": COLUMNS, "newest_first": order == "newest", "model": context.model}
    with context.read() as session:
        after = params.job_id("after", context.model)
        page = collected(partial(list_chains, session, **how), after=after, limit=PAGE, seconds=SEARCH_SECONDS)
    filters = params.given("status", "type", "queue", "top_level")
    links: dict[str, Any] = filters | params.given("order")
    return {
        "chains": [(chain, context.error_line(chain.last_type_name, chain.error)) for chain in page],
        "filters": filters,
        "order": order,
        "tabs": status_tabs(context, "chains", links),
        "next_url": None if page.next is None else context.url("chains", **links, after=page.next),
        "is_short": page.next is not None and len(page.items) < PAGE,
    }


def view_one(context: Context) -> dict[str, Any]:
    """Return the chain of a job, a page of its jobs, the tree of its blockers, and the jobs that wait for it."""
    job_id = context.params.job_id("id", context.model)
    if job_id is None:
        raise ParameterError("id", "is missing: the id of a job of the chain")
    after = context.params.number("after", low=0, high=2**31 - 1, default=-1)
    with context.read() as session:
        chains_of_job = list_chains(
            session, where=ChainFilter(job_ids=[job_id]), columns=(*COLUMNS, "last_job_id"), limit=1, model=context.model
        ).items
        if not chains_of_job:
            raise NotFoundError("chain", [job_id], reason="")
        chain = chains_of_job[0]
        columns = ("id", "chain_index", "type_name", "status", "attempt", "max_attempts", "scheduled_at", "completed_at")
        jobs = list_chain_jobs(
            session,
            chain.id,
            columns=(*columns, "last_error"),
            after=None if after < 0 else after,
            limit=PAGE,
            model=context.model,
        )
        nodes, edges, is_cut = _connected(context, session, chain.id)
        waiting = waiting_types(context, session, chain.id)
    return {
        "heading": f"Chain {chain.type_name} {short(chain.id)}",
        "chain": chain,
        "error_line": context.error_line(chain.last_type_name, chain.error),
        "jobs": [(job, context.error_line(job.type_name, job.last_error)) for job in jobs],
        "next_url": None if jobs.next is None else context.url("chain", id=chain.id, after=jobs.next),
        "tree": trees.tree(nodes, edges, chain.id),
        "is_cut": is_cut,
        "stuck": [node for node in nodes if node.is_stuck],
        "waiting": waiting,
        "most_waiting": WAITING,
        "can_redrive": chain.status is JobStatus.DEAD and context.may("redrive_dead_letters"),
        "can_cancel": chain.status not in ENDED and context.may("cancel_chains"),
    }


def waiting_types(context: Context, session: Session, chain_id: JobId) -> list[Any]:
    """Return how many jobs wait or waited for a chain, by type and status."""
    parameters = {"chain_id": chain_id, "limit": WAITING}
    return list(session.execute(chains.waiting_types(context.model), parameters))


def _connected(context: Context, session: Session, chain_id: JobId) -> tuple[list[trees.Node], dict[trees.Edge, bool], bool]:
    """Return a chain with all that it waits for, directly or not, their edges, and whether there are more."""
    model = context.model
    chain_ids, frontier, is_cut = {chain_id}, [chain_id], False
    edges: dict[trees.Edge, bool] = {}
    while frontier:
        rows = session.execute(chains.edges_of(model), {"ids": frontier, "limit": EDGES}).all()
        new_ids: list[JobId] = []
        for blocker, waiting, is_resolved in rows:
            edges[blocker, waiting] = edges.get((blocker, waiting), True) and is_resolved
            new_ids += [blocker] if blocker not in chain_ids else []
        fresh = list(dict.fromkeys(new_ids))
        is_cut = is_cut or len(rows) >= EDGES or len(chain_ids) + len(fresh) > CHAINS
        frontier = [] if len(edges) >= 2 * EDGES else fresh[: CHAINS - len(chain_ids)]
        chain_ids.update(frontier)
    columns = ("id", "type_name", "status")
    listed = list_chains(session, where=ChainFilter(ids=list(chain_ids)), columns=columns, limit=CHAINS, model=model)
    nodes = [
        trees.Node(key=chain.id, title=chain.type_name, status=chain.status, href=context.url("chain", id=chain.id))
        for chain in listed
    ]
    here = {node.key for node in nodes}
    edges = {edge: is_resolved for edge, is_resolved in edges.items() if here.issuperset(edge)}
    return trees.marked(nodes, edges), edges, is_cut


def _named(context: Context, session: Session, result: BulkResult[Any]) -> list[str]:
    """Return the chains that are meant, those of a type, state and error together."""
    where = ChainFilter(ids=list(result))
    page = list_chains(session, where=where, columns=COLUMNS, limit=MAX_VALUES, model=context.model) if result.ids else ()
    return forms.folded(
        (
            (chain.type_name, chain.id, f"({chain.status}) {context.error_line(chain.last_type_name, chain.error)}".strip())
            for chain in page
        ),
        result.changed,
    )


def _cancel(context: Context, session: Session) -> Changes:
    result = cancel_chains(session, forms.ids(context, "chain"), **context.change)
    ended_count = result.matched - result.changed
    details = [*_named(context, session, result), *([f"{ended_count} had already ended"] if ended_count else [])]
    return Changes(count=result.changed, details=details, ids=result.ids)


def _delete(context: Context, session: Session) -> Changes:
    chain_ids, cascade = forms.ids(context, "chain"), context.params.flag("cascade")
    result = delete_chains(session, chain_ids, cascade=cascade, **context.change)
    effect = "Each is deleted with all its jobs and their attempts, in any state. A worker stops a job that is running."
    if more := result.changed - len(chain_ids):
        effect += f" {more:,} of them are chains that those selected wait or waited for."
    details = _named(context, session, result) if context.is_preview else ()
    return Changes(count=result.changed, effect=effect, details=details, ids=result.ids)


SCREEN = Screen(name="chains", title="Chains", view=view)
ONE = Screen(
    name="chain",
    title="Chain",
    view=view_one,
    part_of="chains",
    acts=(
        Act(
            Permission.CANCEL_CHAINS,
            "Cancel chains",
            _cancel,
            "cancelled",
            "The current job of each is cancelled, and nothing follows. A worker stops a job that is running.",
        ),
        Act(Permission.DELETE_CHAINS, "Delete chains", _delete, "deleted", deletes_from="chains"),
    ),
)
