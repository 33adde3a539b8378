"""A dashboard of a queue in the browser: an ASGI application that is mounted under any prefix, or started by a command.

    app.mount("/jobs", dashboard(engine, jobs, operator=engine, authorize=authorize, hosts=["shop.example"]))

Figures come from the functions that the command line uses; nothing is computed twice. Pages are rendered on the server and
work without JavaScript; with it, the part of a page that changes is fetched again at an interval.

- `access`: who may do what; `guard`: every request passes it (host, credentials, method, origin, headers);
- `sources`: the queues, and the transactions that read and write them; `sampler`: one cached health report per queue;
- `parameters`: bounded reading of query strings and forms; `rendering`: templates, escaping, links;
- `screens`: one module per page, or for a list and the page of one of its rows; `forms`: parts of forms and acts that they
  share; `acts`: the changes that a page offers; `app`: puts them together;
- `static`: our style and script; `static/vendored`: htmx and idiomorph, by `scripts/vendor`.

A new screen is two files and one line:

1. `screens/NAME.py` with `SCREEN = Screen(name="NAME", title="Title", view=view, acts=[...])`. `view(context)` is a plain
   function, run in a thread. It reads parameters with `context.params` (each bounded; a wrong one is a 400), opens
   `with context.read() as session` (READ ONLY, with a statement timeout), calls operations with `model=context.model`, and
   returns the variables of the template. It never writes. Errors of the library become a page with their sentence.
2. `templates/NAME.html`, which extends `base.html` and fills the block `live`: all that may change. The whole page and the
   block have the same URL; the script asks for the block alone with the header `HX-Request`. Every value is escaped and made
   printable by the environment: never use `safe`. Links are `url("jobs", queue=name)`: names of rows are parameters, never
   parts of a path. Templates have no inline script or style: the content security policy forbids them. Compose it of the
   components in `macros.html`, which `tests/dashboard/components.html` shows in all their states.
3. The module in `SCREENS` of `screens/__init__.py`, in the order of the navigation; `part_of` names the page of the menu
   under which it is found if it has no entry there.

An act is an `Act` in the screen's `acts`: its permission (one for each operation), and `run`, which calls the operation with
`**context.change` and returns the changes with a count. Its form is the macro `ui.act_form`; the first POST runs it as a dry
run in a READ ONLY transaction and shows the preview, the second one, confirmed, in one of the operator engine. Nothing else
changes a row, so authorisation, CSRF and the audit line stand once, in `acts.perform`.

Tests enumerate screens and acts: a new one is tested for access, methods, hostile text, fuzzed parameters and accessibility
without further work, except for links to it that need parameters, in `tests/dashboard/links.py`.
"""

from sa_jobqueue.dashboard.access import ALL_PERMISSIONS, Access, Permission
from sa_jobqueue.dashboard.app import dashboard
from sa_jobqueue.dashboard.sources import Source

__all__ = ["ALL_PERMISSIONS", "Access", "Permission", "Source", "dashboard"]
