"""`sa-jobqueue demo`: the queue at its main job, on real input.

Every Python source file of the running interpreter's standard library is recorded in a table of the application, with
a job in the same transaction; worker processes parse the files and write counts to another table, through the handler's
session. Files with broken syntax fail, are retried, and end as dead letters. One worker is killed with SIGKILL while it
runs jobs; others take them back. At the end the counts are compared with a plain pass over the same files.

- `files` finds and counts: plain Python, no queue;
- `app` is the application: its tables, its queue, its handler;
- `database` prepares and removes the schema it all lives in;
- `workers` starts processes, kills one, and leaves none behind;
- `run` is the story from enqueue to the last job; `report` tells and checks how it went; `command` is the command line.
"""
