"""``/ui`` and its feed."""

from __future__ import annotations

import json

import pytest

from tests.server.live import Live, error_of, serving


def test_the_page_needs_nothing_from_elsewhere(live: Live) -> None:
    response = live.http.get("/ui")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    for foreign in ("http://", "https://", "//cdn", "innerHTML"):
        assert foreign not in response.text


def test_the_feed(live: Live) -> None:
    with live.http.stream("GET", "/debug/events") as response:
        lines = response.iter_lines()
        look = json.loads(next(lines).removeprefix("data: "))
        assert look["phase"] == "ready"
        assert look["model"] == "toy"
        assert look["stats"]["num_running_reqs"] == 0
        assert look["tree"] == []
        assert live.process.server.viewers == 1


def test_one_look(live: Live) -> None:
    assert live.http.get("/debug/radix").json()["running"] == []


@pytest.mark.parametrize("path", ["/ui", "/debug/events", "/debug/radix"])
def test_it_can_be_switched_off(path: str) -> None:
    with serving(ui=False) as live:
        assert error_of(live.http.get(path), 404)["code"] == "unknown_url"


def test_it_is_off_where_others_can_reach_it() -> None:
    from sglang_lite.runtime.server.config import ServerConfig

    assert ServerConfig(host="127.0.0.1").shows_ui
    assert not ServerConfig(host="0.0.0.0").shows_ui
    assert ServerConfig(host="0.0.0.0", ui=True).shows_ui


def test_a_viewer_does_not_keep_the_server_from_stopping() -> None:
    with serving() as live, live.http.stream("GET", "/debug/events") as response:
        next(response.iter_lines())
        live.process.stop()
