"""Names, errors and payloads that attack their readers: shown as text, on every screen."""

from __future__ import annotations

import html
import re
import unicodedata

import pytest
from sqlalchemy import Engine

from sa_jobqueue.dashboard import dashboard
from sa_jobqueue.dashboard.screens import SCREENS
from tests.dashboard.conftest import Client, everyone
from tests.dashboard.links import links
from tests.fixtures.hostile import HostileJob, unsafe, write_hostile

pytestmark = pytest.mark.slow

MARKUP = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7777 * 7777 }}'


@pytest.mark.parametrize("corpus", ["control", "markup"])
def test_every_screen_escapes_hostile_text(engine: Engine, monkeypatch: pytest.MonkeyPatch, corpus: str) -> None:
    if corpus == "markup":
        for name in ("tests.fixtures.hostile.HOSTILE",):
            monkeypatch.setattr(name, MARKUP)
    ids = write_hostile(engine)
    client = Client(dashboard(engine, HostileJob, operator=engine, authorize=everyone))
    for screen in SCREENS:
        for path in links(ids)[screen.name]:
            # A traceback has lines, in an element of its own.
            page = re.sub("(?s)<pre.*?</pre>", lambda match: match[0].replace("\n", " "), client.page(f"/queue/{path}"))
            text = page if corpus == "control" else html.unescape(page)
            assert not unsafe(page.replace("\r", "")), screen.name
            assert not [char for char in page if unicodedata.category(char) == "Cc" and char not in "\n\t"], screen.name
            assert "<script>" not in page
            assert "<img" not in page
            assert str(7777 * 7777) not in text
            if corpus == "markup" and screen.name not in {"overview", "storage"}:
                assert "&lt;script&gt;" in page, screen.name
