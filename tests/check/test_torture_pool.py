"""The torture's processes: results of all tasks come back, and one that hangs, dies or eats memory harms no other."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from torturing.pool import spread


def work(task: int | str) -> int:
    if task == "hang":
        time.sleep(60)
    if task == "die":
        os._exit(3)
    if task == "raise":
        raise ValueError("no")
    if task == "memory":
        return len(bytearray(1 << 32))
    assert isinstance(task, int)
    return task * task


def test_a_bad_task_is_named_and_the_others_are_done() -> None:
    tasks: list[int | str] = [1, "hang", 2, "die", 3, "raise", "memory", *range(4, 30)]
    found = {item.task: item for item in spread(work, tasks, 3, each=2, memory_mib=2048)}
    assert set(found) == set(tasks)
    assert {task: item.result for task, item in found.items() if not item.lost} == {
        n: n * n for n in range(1, 30)
    }
    assert found["hang"].lost == "over 2 s"
    assert found["die"].lost == "the process ended with status 3"
    assert found["raise"].lost.startswith("ValueError: no (")
    assert found["memory"].lost == "more than 2048 MiB of memory"


def test_when_the_time_is_up_nothing_is_begun_and_the_rest_is_unfinished() -> None:
    begin = time.monotonic()
    ends: list[int | str] = [1, "hang", 2, "hang", "hang"]
    found = list(spread(work, ends, 2, each=60, seconds=1, grace=1))
    assert time.monotonic() - begin < 10
    assert [item.result for item in found if not item.unfinished] == [1, 4]
    assert [item.task for item in found if item.unfinished] == ["hang", "hang"]
    assert not any(item.lost for item in found)
