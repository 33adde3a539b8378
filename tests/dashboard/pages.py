"""The text of a page, its forms, and the cost of reading it."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from sqlalchemy import Engine

from tests.dashboard.conftest import Client


def confirmed(client: Client, preview: str) -> str:
    """Send the form of a preview; return the page that follows."""
    act = re.findall(r'action="[^"]*/acts/([a-z-]+)"', preview)[0]
    arguments = json.loads(html.unescape(re.findall(r'name="what" value="([^"]*)"', preview)[0]))
    response = client.post(act, arguments, confirmed="1")
    assert response.status_code == 200, response.text
    return response.text


def forms(page: str, act: str) -> list[dict[str, str]]:
    """Return the subjects of the forms of an act on a page."""
    values = re.findall(rf'(?s)action="[^"]*/acts/{act}".*?name="what" value="([^"]*)"', page)
    return [json.loads(html.unescape(value)) for value in values]


def words(page: str) -> str:
    """Return a page's text in one line, cells apart."""
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index("<h1>") :]))
    return re.sub(r" ([,.])", r"\1", text)


def buffers(engine: Engine, statements: list[tuple[str, Any]]) -> int:
    """Return how many buffers statements read, by running each again."""
    buffer_count = 0
    with engine.connect() as connection:
        for statement, parameters in statements:
            if statement.startswith("SET"):
                continue
            [plan] = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
            ).scalar_one()
            buffer_count += sum(plan["Plan"][f"Shared {kind} Blocks"] for kind in ("Hit", "Read"))
            connection.rollback()
    return buffer_count
