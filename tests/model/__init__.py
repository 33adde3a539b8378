"""The whole queue against a plain Python model of it, driven side by side by Hypothesis.

`model` computes the right state, `system` does the same to a database and reads it back, `machine` draws what happens
next and compares the two after every step. Concurrency inside a step is the explorer's (`tests.explorer`); here every
step is whole, but what comes between the steps of one story is anything: crashes, other workers, time.
"""
