"""An Airflow DAG that loads a day's reminders, and waits until their jobs have ended."""

from datetime import UTC, datetime, timedelta

import reminders
from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException


@dag(schedule="@daily", start_date=datetime(2026, 11, 1, tzinfo=UTC), catchup=True, max_active_runs=2)
def daily_reminders():
    @task(retries=3, retry_delay=timedelta(minutes=5))
    def load(ds: str, run_id: str) -> str:
        write_id = f"daily_reminders.{run_id}"
        reminders.load(ds, write_id)
        return write_id

    @task.sensor(poke_interval=60, timeout=6 * 3600, mode="reschedule")
    def ended(write_id: str) -> bool:
        try:
            return reminders.has_ended(write_id)
        except reminders.JobsDiedError as error:
            raise AirflowFailException(str(error)) from error

    ended(load())


daily_reminders()
