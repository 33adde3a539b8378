"""The runner that walks the versions of the queue's own DDL, and the plugin that writes them into a history.

A version is a module of `ddl` with two functions that return SQL text. It never changes once released and imports
nothing of ours: a migration written by an application years ago must replay to the byte. The version a database has is
stamped in the comment of its `job` table, where stock Alembic sees it as well.
"""
