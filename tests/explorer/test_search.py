"""The search takes each path once, explores new points after the same choices, and gives up others."""

from __future__ import annotations

from collections.abc import Iterator
from math import factorial

import pytest

from tests.explorer.search import MISSES, Script, Search


def take(search: Search, steps: dict[str, int], states: Iterator[str] | None = None) -> tuple[str, bool]:
    """Run one path through operations that never wait; after the first choice something else may be seen."""
    steps_left = dict(steps)
    path = ""
    search.begin()
    while enabled := [name for name, count in steps_left.items() if count]:
        noticed = next(states) if states is not None and len(path) == 1 else ""
        path += search.choose(enabled, noticed)
        steps_left[path[-1]] -= 1
    return path, search.end()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_search_takes_every_path_once(seed: int | None) -> None:
    search = Search(seed)
    paths = []
    while not search.is_exhausted:
        path, is_new = take(search, {"a": 3, "b": 2, "c": 2})
        assert is_new
        paths.append(path)
    assert len(paths) == len(set(paths)) == factorial(7) // (factorial(3) * factorial(2) * factorial(2))
    assert (paths == sorted(paths)) == (seed is None)
    assert search.unreached == 0


def test_the_same_seed_takes_the_same_paths() -> None:
    first, second, other_seed = (Search(seed) for seed in (7, 7, 8))
    steps = {"a": 3, "b": 3}
    assert [take(first, steps) for _ in range(9)] == (same := [take(second, steps) for _ in range(9)])
    assert [take(other_seed, steps) for _ in range(9)] != same


def test_observations_that_differ_after_the_same_choices_are_explored() -> None:
    search = Search()
    turns = (turn for _ in range(99) for turn in ("one", "other"))
    new = [take(search, {"a": 1, "b": 2}, turns)[1] for _ in iter(lambda: search.is_exhausted, True)]
    # After a: twice b, which ends the point met there. After b: a b and b a, each in the two ways that were met by then.
    assert (sum(new), search.unreached) == (5, 0)


def test_observations_that_do_not_recur_are_given_up_and_counted() -> None:
    search = Search()
    rare = iter(["rare", *["usual"] * 99])
    steps = {"a": 2, "b": 2}
    paths = [take(search, steps, rare) for _ in iter(lambda: search.is_exhausted, True)]
    assert search.unreached == 1
    assert [path for path, is_new in paths if is_new] == ["aabb", "aabb", "abab", "abba", "baab", "baba", "bbaa"]
    assert len(paths) == 7 + MISSES


def test_a_finished_script_continues_with_the_first_enabled_operation() -> None:
    script = Script("b a*")
    assert [script.choose(["a", "b"], None) for _ in range(3)] == ["b", "a", "a"]
