"""The handlers of the incidents' workers."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from sa_jobqueue import AttemptContext, JobQueue

jobs = JobQueue()


@jobs.handler("charge_card", queue="billing")
async def charge_card(payload: dict[str, Any]) -> None:
    await asyncio.sleep(payload.get("seconds", 0))


@jobs.handler("refund", queue="refunds", max_attempts=1)
async def refund(payload: dict[str, Any]) -> None:
    if payload.get("card") == "expired":
        raise ValueError("the card has expired")


@jobs.handler("import_row", queue="imports")
async def import_row(payload: dict[str, Any]) -> None:
    await asyncio.sleep(0.2)


@jobs.handler("send_mail", queue="mail")
async def send_mail(payload: dict[str, Any]) -> None: ...


@jobs.handler("sync_contact", queue="mail", version=2)
async def sync_contact(payload: dict[str, Any]) -> None: ...


@jobs.handler("send_text", queue="texts")
async def send_text(payload: dict[str, Any]) -> None: ...


@jobs.handler("newsletter", queue="news")
async def newsletter(payload: dict[str, Any]) -> None: ...


@jobs.handler("report", queue="reports")
async def report(payload: dict[str, Any]) -> None: ...


@jobs.handler("approval", queue="reports")
async def approval(payload: dict[str, Any], ctx: AttemptContext) -> None:
    await ctx.wait_for("approval", event=payload["event"], timeout=timedelta(hours=9))


@jobs.handler("crunch", queue="numbers", timeout=timedelta(hours=9))
def crunch(payload: dict[str, Any]) -> None:
    """Run for as long as it likes: it neither asks whether it is cancelled, nor can its thread be stopped."""
    time.sleep(payload["seconds"])


@jobs.handler("thumbnail", queue="pictures")
async def thumbnail(payload: dict[str, Any]) -> None:
    await asyncio.sleep(payload["seconds"])
