"""The data pipeline: Spark's source, sink and workers, the archive in Parquet, and analytics of a queue's history.

Nothing else in the package imports it; the command line finds its commands by name. The import adds its tables to the
ready-made models, for migrations and `create_all`; other classes ask for them by `queue_pipeline=True`.
"""

from sa_jobqueue.models import Job
from sa_jobqueue.models.job import add_pipeline

add_pipeline(Job)
