"""What training processes wrote becomes one event, and nothing in it can hurt the daemon."""

from __future__ import annotations

import json
import math

from gpq_agent import wire
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.freedoms import MAX_HABITS
from gpq.core.model.events import TimingSums
from gpq.core.model.placements import BatchOrder
from gpq.core.model.profile import Declared, Habit, LossPoint, Noise, Progress, RankTime
from gpq.core.model.units import JobId
from gpq.daemon.nodes.reports import profiled_event


def lines(*messages: dict[str, object]) -> str:
    return "".join(json.dumps({"v": 1, "time": 0.0, **message}) + "\n" for message in messages)


def test_every_kind_of_report_finds_its_place() -> None:
    timing = wire.Timing(1, 2, 32, 0, 10, 1.0, 10, 2.0)
    event = profiled_event(
        5.0,
        JobId(1),
        2,
        900,
        lines(
            {"kind": "declared", **wire.Declared("adaptive", 64, 1024, epochs=3, passes=True, adapter="trl")._asdict()},
            {"kind": "ready", "seconds": 3.0, "restore_seconds": 1.0, "warm": True},
            {"kind": "timing", **timing._asdict()},
            {"kind": "timing", **timing._replace(atomic_batch=64)._asdict()},
            {"kind": "noise", **wire.Noise(0.5, 8.0, 640)._asdict()},
            {"kind": "progress", **wire.Progress(1, 3, 128, 40, 44.5, 0.4)._asdict()},
            {"kind": "retuned", "atomic_batch": 64, "accum_steps": 1, "lr_factor": 2.0, "seq": 3},
            {"kind": "checkpoint", "step": 40, "seconds": 0.25, "bytes": 10, "why": "periodic"},
            {"kind": "metrics", "step": 40, "values": {"loss": 1.5}},
            {"kind": "metrics", "step": 41, "values": {"loss": 1.25, "bad": None, "perplexity": "inf"}},
            {"kind": "loss", **wire.Loss(40.5, 1.375)._asdict()},
            {"kind": "loss", **wire.Loss(44.5, 1.25)._asdict()},
            {
                "kind": "ranks",
                **wire.RankTimes(40, [9, 9], [0.1, 0.2], [0.3, 0.4], [1.0, 1.0], [0.5, 0.0], [0.0, 0.1])._asdict(),
            },
            {"kind": "of a later version", "anything": 1},
            {"kind": "notice", "message": "less memory than thought"},
        ),
    )
    assert event.offset == 900
    assert event.declared == Declared(True, 64, 1024, epochs=3, passes=True, adapter="trl")
    assert (event.ready, event.warm, event.restore_seconds) == (True, True, 1.0)
    assert event.timings == (TimingSums(1, 2, 32, 0, 10, 1.0, 10, 2.0), TimingSums(1, 2, 64, 0, 10, 1.0, 10, 2.0))
    assert event.noise == Noise(0.5, 8.0, 640)
    assert event.progress == Progress(1, 3, 128, 40, 44.5, 0.4)
    assert event.retuned == BatchOrder(3, 64, 1)
    assert event.checkpoint_seconds == 0.25
    assert event.metrics == (("loss", 1.25), ("perplexity", math.inf))
    assert event.losses == (LossPoint(40.5, 1.375), LossPoint(44.5, 1.25))
    assert event.ranks == (RankTime(0, 9, 0.1, 0.3, 1.0, 0.5, 0.0), RankTime(1, 9, 0.2, 0.4, 1.0, 0.0, 0.1))
    assert event.notices == ("less memory than thought",)


def test_an_invalid_line_is_skipped_and_the_others_count() -> None:
    good = {"kind": "notice", "message": "here"}
    event = profiled_event(
        0.0, JobId(1), 1, 9, "no json\n" + lines({"kind": "timing", "nodes": "x"}, good) + '["list"]\n'
    )
    assert event.notices == ("here",)
    assert event.timings == ()


def test_values_that_are_not_finite_never_reach_a_fit() -> None:
    bad = '{"kind":"noise","sqr":NaN,"var":1.0,"samples":1}\n{"kind":"noise","sqr":1.0,"var":Infinity,"samples":1}\n'
    assert profiled_event(0.0, JobId(1), 1, 9, bad).noise is None
    bad = '{"kind":"loss","base_steps":1.0,"loss":NaN}\n{"kind":"loss","base_steps":-1,"loss":1.0}\n'
    bad += '{"kind":"loss","base_steps":1,"loss":-1e300}\n'
    good = '{"kind":"loss","base_steps":2.0,"loss":0.5}'
    assert profiled_event(0.0, JobId(1), 1, 9, bad + good).losses == (LossPoint(2.0, 0.5),)


def test_times_and_sizes_that_nothing_can_have_are_skipped() -> None:
    timing = wire.Timing(1, 2, 32, 0, 10, 1.0, 10, 2.0)._asdict()
    declared = wire.Declared("adaptive", 64, 1024)._asdict()
    wrong = [
        *({"replicas": count} for count in (0, 1 << 53, 4097, -1)),
        *({"nodes": count} for count in (0, 3, 1 << 53)),
        *({"step_sum": seconds} for seconds in (1e-6, 1e30, -1.0)),
        *({"accum_sum": seconds} for seconds in (1e-300, 1e20)),
        *({"step_count": count} for count in (1 << 53, 1e308)),
        {"atomic_batch": 0},
    ]
    bad = [{"kind": "timing", **timing, **lie} for lie in wrong]
    bad += [{"kind": "declared", **declared, "batch_size": size} for size in (1 << 40, -1)]
    bad += [{"kind": "noise", "sqr": sqr, "var": 1.0, "samples": 9} for sqr in (1e-300, 1e31)]
    event = profiled_event(0.0, JobId(1), 1, 9, lines(*bad))
    assert (event.timings, event.declared, event.noise) == ((), None, None)


def test_one_habit_per_code_arrives_with_its_known_freedoms() -> None:
    told = wire.Habit("two-passes", ["split", "accumulate", "levitate"], "two passes", "none is needed")._asdict()
    bad = [
        {"code": ["x"], "freedoms": ["split"]},
        {"code": "x", "freedoms": "split"},
        {"code": "x", "freedoms": [["split"], 7, None]},
        {"code": "\u202e\n", "freedoms": ["split"]},
        {"freedoms": ["split"]},
    ]
    text = lines({"kind": "habit", **told}, {"kind": "habit", **told}, *({"kind": "habit", **each} for each in bad))
    assert profiled_event(0.0, JobId(1), 1, 9, text).habits == (
        Habit("two-passes", ("accumulate", "split"), "two passes", "none is needed"),
    )


def test_a_habit_is_one_printable_line_however_it_was_sent() -> None:
    sent = {
        "code": "a b\x1b[1m" + "c" * 500,
        "freedoms": ["resize"] * 10_000,
        "message": "x\ny\u202e" * 9_999,
        "cure": [1],
    }
    [kept] = profiled_event(0.0, JobId(1), 1, 9, lines({"kind": "habit", **sent})).habits
    assert kept.freedoms == ("resize",)
    assert kept.cure == "[1]"
    assert all(text.isprintable() and len(text) <= 300 for text in (kept.code, kept.message, kept.cure))
    assert len(kept.code) == 64


def test_with_ten_thousand_habits_all_freedoms_count_and_few_are_kept() -> None:
    many = lines(*({"kind": "habit", "code": f"h{i}", "freedoms": ["split"]} for i in range(10_000)))
    event = profiled_event(0.0, JobId(1), 1, 9, many + lines({"kind": "habit", "code": "last", "freedoms": ["resize"]}))
    assert len(event.habits) == MAX_HABITS
    assert {each for habit in event.habits for each in habit.freedoms} == {"split", "resize"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = sorted(
    {
        *wire.RankTimes._fields,
        *wire.Timing._fields,
        *wire.Loss._fields,
        *wire.Noise._fields,
        *wire.Progress._fields,
        *wire.Declared._fields,
        *wire.Habit._fields,
    }
)
messages = st.fixed_dictionaries(
    {"kind": st.sampled_from(wire.REPORT_KINDS)},
    optional=dict.fromkeys([*names, "values", "message", "seconds", "seq"], json_values),
)


@given(st.lists(messages | json_values, max_size=4), st.text(max_size=40))
def test_no_report_can_raise_or_break_a_model(found: list[object], noise: str) -> None:
    text = "\n".join([*(json.dumps(one) for one in found), noise])
    event = profiled_event(0.0, JobId(1), 1, 7, text)
    assert event.offset == 7
    assert all(isinstance(value, float) for _, value in event.metrics)
    assert all(math.isfinite(point.loss) and math.isfinite(point.base_steps) for point in event.losses)
    assert all(math.isfinite(one.compute) for one in event.ranks)
    assert all(math.isfinite(sums.step_sum) for sums in event.timings)
    assert all(habit.freedoms and habit.code.isprintable() for habit in event.habits)
