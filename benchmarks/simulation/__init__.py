"""How long jobs wait, predicted: a discrete-event simulation of workers that plan with the worker's own planner.

`workload` has the arrivals and durations, `model` simulates workers on it (SimPy), `real` runs the very same jobs
through real workers, `command` shows one beside the other. The cost of a claim is an argument; who gets a slot is decided by
`sa_jobqueue.worker.claim.planner`, in the simulation as in a worker.
"""
