"""How far the jobs of a bulk write are. With an `AsyncSession`: `await session.run_sync(count_write_chains, write_id)`."""

from sa_jobqueue.pipeline.operations.writes import WriteCounts, count_write_chains

__all__ = ["WriteCounts", "count_write_chains"]
