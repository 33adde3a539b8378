"""Mapped objects as arguments of jobs."""
