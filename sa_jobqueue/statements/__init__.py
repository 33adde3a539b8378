"""SQL as functions: each returns one SQLAlchemy Core construct and executes nothing.

Statements of the hot path are built once a `Job` class and take their values as bound parameters, named in the
docstring. They are planned on the worker's own connections, whose guards (`claims.GUARDS`) rule out every plan that a queue
table's swinging statistics could make look cheap; where a statement also runs on an application's session, it says so.
"""
