"""`sa-jobqueue grants`: database roles with the least privileges."""

from __future__ import annotations

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo, echo_script
from sa_jobqueue.migrations.grants import ROLES, apply_grants, grant_statements, role_names


@click.command()
@opts.url_option
@opts.app_option
@click.option(
    "--roles", default=ROLES, show_default=True, metavar="NAME", help="Prefix of the roles' names, as in NAME_worker."
)
@click.option("--apply", is_flag=True, help="Run the SQL on the database of --url, in one transaction.")
def grants(url: str | None, app: str | None, roles: str, *, apply: bool) -> None:
    """Print the SQL for four roles with the least privileges: producer, worker, observer, operator.

    A producer may enqueue, a worker may run jobs, an observer may read, an operator may redrive, cancel, delete and
    archive; none may change the schema. The roles cannot log in: grant them to roles that can. Printing needs no database.
    Apply the SQL again after each migration.
    """
    layout = opts.load_model(app).__jobqueue__
    with opts.usage_errors():
        statements = grant_statements(layout, roles=roles)
    if not apply:
        echo_script(statements)
        return
    with opts.Database(opts.parse_url(url), opts.load_model(app)).session() as session, session.begin():
        apply_grants(session.connection(), layout, roles=roles)
    job = layout.qualified("job")
    echo(f"{', '.join(role_names(roles).values())} were granted their privileges on {job} and its related objects.")
