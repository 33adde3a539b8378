"""Whatever is sent, the answer is a page, a refusal or a sentence, and never an internal error."""

from __future__ import annotations

import random
import string
from urllib.parse import quote

import pytest

from sa_jobqueue import JobStatus
from sa_jobqueue.dashboard.acts import MAX_BODY
from sa_jobqueue.dashboard.screens import ACTS, SCREENS
from tests.dashboard.conftest import Client
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.jobs import Jobs

NAMES = (
    *("status", "type", "queue", "fairness_key", "id", "chain", "created_after", "created_before", "input", "order"),
    *("limit", "after", "what", "ids", "confirmed", "back", "fingerprint", "reason", "name", "window", "priority"),
)
VALUES = (
    *(
        "",
        "0",
        "-1",
        "1",
        "999999999999999999999999",
        "1e9",
        "٣",
        "NaN",
        "null",
        "true",
        "[]",
        "{}",
        '{"a": NaN}',
        "[" * 900,
    ),
    *("dead", "' OR 1=1 --", "%", "\\", "../x", "a b", "ü", "mail/42", "<script>alert(1)</script>", "{{ 7 * 7 }}", HOSTILE),
    *("\x00", "a\x00b", "9999-12-31T23:59:59-14:00", "0001-01-01", "2026-02-30", "00000000-0000-0000-0000-000000000000"),
    *("x" * 1000, "x" * 1001, '"\\ud800"', '{"\\u0000": 1}', '{"id": ["x"]}', '{"id": 7}', '{"id": {"a": 1}}'),
)


@pytest.mark.slow
@pytest.mark.parametrize("values", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("screen", [screen.name for screen in SCREENS])
def test_fuzzed_query_strings_cause_no_server_error(client: Client, jobs: Jobs, screen: str, values: int) -> None:
    jobs.add(JobStatus.DEAD)
    rng = random.Random(screen)
    statuses = set()
    queries = [f"{name}={quote(value)}" for name in NAMES for value in rng.sample(VALUES, values)]
    queries += [
        f"{rng.choice(NAMES)}=%ff%fe&{rng.choice(NAMES)}=%ed%a0%80",
        "&".join(f"type={number}" for number in range(30)),
        quote("".join(rng.choices(string.printable, k=200)), safe="&=%+;"),
    ]
    for query in queries:
        response = client.get(f"/queue/{screen}?{query}")
        statuses.add(response.status_code)
        assert response.status_code in {200, 400, 404}, (query, response.text)
    assert (200 in statuses) is (screen not in {"job", "chain"})  # which need an id


@pytest.mark.slow
@pytest.mark.parametrize("values", [10, pytest.param(len(VALUES), marks=pytest.mark.long)])
@pytest.mark.parametrize("act", ACTS)
def test_fuzzed_forms_cause_no_server_error(client: Client, jobs: Jobs, act: str, values: int) -> None:
    jobs.add(JobStatus.DEAD)
    rng = random.Random(act)
    token = client.token()
    for value in rng.sample(VALUES, values):
        form_fields = {"csrf_token": token, rng.choice(NAMES): value, rng.choice(("what", "ids")): value, "confirmed": "1"}
        response = client.request("POST", f"/queue/acts/{act}", data=form_fields, headers={"Sec-Fetch-Site": "same-origin"})
        assert response.status_code in {200, 400, 404, 409}, (value, response.text)


def test_oversized_and_malformed_forms_are_refused(client: Client) -> None:
    token = client.token()
    same = {"Sec-Fetch-Site": "same-origin"}
    form = same | {"Content-Type": "application/x-www-form-urlencoded"}
    path = "/queue/acts/cancel-jobs"
    assert client.request("POST", path, content=b"x=" + b"y" * MAX_BODY, headers=form).status_code == 413
    assert client.request("POST", path, content=b"a&" * 5000, headers=form).status_code == 400
    assert client.request("POST", path, content="ü=1".encode(), headers=form).status_code == 400
    assert client.request("POST", path, content=b"a=%ff", headers=form).status_code == 400
    assert client.request("POST", path, json={"csrf_token": token}, headers=same).status_code == 415
    files = {"what": ("name", b"content")}
    assert client.request("POST", path, files=files, data={"csrf_token": token}, headers=same).status_code == 415
    arguments = {"id": [str(number) for number in range(1001)]}
    response = client.post("cancel-jobs", arguments)
    assert response.status_code == 400
    assert "at most 1000" in response.text


def test_names_with_special_characters_survive_in_urls(client: Client, jobs: Jobs) -> None:
    names = ["mail/42", "a b", "ü", "../x", "a&type=b", "a%2Fb", "#", "?", "+", '"><i>']
    for name in names:
        jobs.add(queue=name, type_name=name)
    for name in names:
        page = client.page(f"/queue/jobs?queue={quote(name, safe='')}&type={quote(name, safe='')}")
        assert page.count('name="ids"') == 1, name
