"""`sa-jobqueue demo`: a complete run of the queue on real input.

Every Python source file of the interpreter's standard library is recorded in a table of the application, with a job in
the same transaction. Worker processes parse the files and write counts to another table, through the handler's session.
Files with broken syntax fail, are retried, and become dead letters. One worker is killed with SIGKILL while it runs jobs;
others rescue them. At the end the counts are compared with those of a single process without the queue.

`app` is the application: its tables, its queue, its handler. `run` runs it and checks the result; `command` is the command.
"""
