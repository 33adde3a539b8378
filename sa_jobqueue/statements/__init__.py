"""SQL as functions: each returns one SQLAlchemy Core construct and executes nothing.

Statements of the hot path are built once a `Job` class and take their values as bound parameters, named in the
docstring. They are planned on the worker's own connections, whose settings (`db.session_settings.GUARDS`) rule out every
plan that a queue table's changing statistics could make look cheap. A statement that also runs on an application's session
says so.
"""
