"""The data pipeline: Spark's source, sink and workers, the archive in Parquet, and analytics of a queue's history.

Nothing else in the package imports it; the command line finds its commands by name.
"""
