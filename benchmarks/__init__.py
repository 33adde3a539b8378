"""The costs of the queue, measured beside the limit of the same server: `python -m benchmarks`.

A **scenario** is one question, such as the cost of a drain; its **cases** are compared: ours, and a limit
that no queue on this server could pass. Every case runs once a round, so that what else the machine does hits all of
them; medians and ratios count, absolute times only beside the machine they were taken on.

`harness` runs rounds, `meter` reads the consumption of a case, `place` is the database it runs in, `report` shows it.
"""
