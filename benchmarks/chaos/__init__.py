"""Chaos beside other queues: the same fleet, load, faults and seed for each, judged by what their handlers left behind.

`python -m benchmarks.chaos --seed 7`. `systems` lists the queues and how each is set up; `workers` has a script
for each that runs in its own virtual environment and speaks `application`; what their handlers did stands in `journals`.
`fleet` and `producer` run them, `faults` breaks them, `judge` counts, `run` goes through it all, and `report` tells.
"""
