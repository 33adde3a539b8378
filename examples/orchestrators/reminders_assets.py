"""Dagster assets of a day's reminders: loaded, and sent when their jobs have ended."""

import dagster as dg
import reminders

DAYS = dg.DailyPartitionsDefinition(start_date="2026-11-01")


@dg.asset(partitions_def=DAYS, retry_policy=dg.RetryPolicy(max_retries=3, delay=300))
def reminders_loaded(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    write_id = f"reminders.{context.partition_key}"
    return dg.MaterializeResult(metadata={"write_id": write_id, "jobs": reminders.load(context.partition_key, write_id)})


@dg.asset(partitions_def=DAYS, deps=[reminders_loaded])
def reminders_sent(context: dg.AssetExecutionContext) -> None:
    if not reminders.has_ended(f"reminders.{context.partition_key}"):
        raise dg.RetryRequested(max_retries=60, seconds_to_wait=60)


@dg.sensor(target=dg.AssetSelection.assets(reminders_sent), minimum_interval_seconds=60)
def when_ended(context: dg.SensorEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
    """Materialize `reminders_sent` for the days whose jobs have ended."""
    loaded = context.instance.get_materialized_partitions(reminders_loaded.key)
    days = sorted(loaded - context.instance.get_materialized_partitions(reminders_sent.key))
    run_requests = []
    for day in days:
        try:
            has_ended = reminders.has_ended(f"reminders.{day}")
        except reminders.JobsDiedError:
            has_ended = True  # the run raises the error, and fails
        if has_ended:
            run_requests.append(dg.RunRequest(run_key=day, partition_key=day))
    return run_requests or dg.SkipReason(f"{len(days)} days have open jobs")


definitions = dg.Definitions(assets=[reminders_loaded, reminders_sent], sensors=[when_ended])
