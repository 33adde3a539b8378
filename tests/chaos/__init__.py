"""Chaos: real workers on a real server, faults in a seeded order, and the database asked afterwards what became of it all.

`python -m tests.chaos --minutes 10 --seed 7`. `application` has the handlers of the workers; `proxy`, `fleet` and `world`
are what can be broken; `faults` breaks it; `load` produces jobs; `checks` judges, from the database alone; `run` goes
through it all, and `report` tells.
"""
