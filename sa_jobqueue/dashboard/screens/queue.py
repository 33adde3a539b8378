"""One queue, or one fairness key of it: figures, charts, limits in use, keys, and its settings."""

from __future__ import annotations

from typing import Any, Final

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.activity import activity
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.dashboard.screens.fairness_keys import keys
from sa_jobqueue.operations import WorkerFilter, list_queues, list_workers
from sa_jobqueue.policies.rates import Rate, RateAlgorithm
from sa_jobqueue.registry.limits import QueueColumns, settings_of
from sa_jobqueue.statements import limits

_WORKERS: Final = 1000
_KEYS: Final = 20
_LIMITS: Final = 1000


def view(context: Context) -> dict[str, Any]:
    """Return the record of a queue, and its keys with the most due jobs; of a key its own counts."""
    name, key = context.params.text("name"), context.params.text("fairness_key") or ""
    if name is None:
        raise ParameterError("name", "is missing: the name of a queue")
    timeout, model = context.source.heartbeat_timeout, context.model
    with context.read() as session:
        found = list_queues(session, names=[name], fairness_key=key, heartbeat_timeout=timeout, model=model).items
        now = context.source.now()
        where = WorkerFilter(queues=[name])
        workers = list_workers(session, where=where, limit=_WORKERS, model=model)
        live = [one for one in workers if now - one.heartbeat_at <= timeout]
        shown = {} if key else activity(context, session, workers=live, queue=name)
        rows = keys(context, session, queue=name, prefix=key, order="key" if key else "due", limit=1 if key else _KEYS)
        running = session.execute(limits.running_by_fairness_key(model), {"queue": name}).all()
        state = session.execute(limits.current(model), {"limit": _LIMITS}).all()
    rate = next((Rate.of(row) for row in state if (row.is_type, row.name, row.fairness_key) == (False, name, key)), None)
    return shown | {
        "name": name,
        "key": key,
        "heading": f"Fairness key {key}" if key else f"Queue {name}",
        "one": found[0] if found else None,
        "running": sum(row.n for row in running if not key or row.fairness_key == key),
        "rate": rate,
        "keys": [pair for pair in rows if not key or pair[0].fairness_key == key],
        "now": now,
        "workers": live,
        "seen": forms.seen(found[0].updated_at if found else None),
        "settings": {one: each for one, each in settings_of(QueueColumns).items() if each.of_keys or not key},
        "algorithms": list(RateAlgorithm),
    }


SCREEN = Screen(name="queue", title="Queue", view=view, part_of="queues")
