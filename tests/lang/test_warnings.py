"""A gen that was cut by the default length is warned about, once for each place."""

from __future__ import annotations

import logging

import sglang_lite as sgl


def cuts(caplog, *, at_gen=None, rows=3, **options):
    @sgl.function
    def program(s, i):
        s += sgl.gen("x", max_tokens=at_gen) + sgl.gen("y", max_tokens=at_gen)

    with caplog.at_level(logging.WARNING, "sglang_lite"):
        mock = sgl.Mock("z" * 500)
        program.run_batch([(i,) for i in range(rows)], backend=mock, **options)
    return sorted(record.getMessage().split(" ")[0] for record in caplog.records)


def test_the_default_length_warns_once_for_each_gen(caplog):
    assert cuts(caplog) == ["gen('x')", "gen('y')"]


def test_a_chosen_length_does_not_warn(caplog):
    assert cuts(caplog, max_new_tokens=5) == []
    assert cuts(caplog, at_gen=5) == []
    assert cuts(caplog, sampling={"max_new_tokens": 7}) == []
