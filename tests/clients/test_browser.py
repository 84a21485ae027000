"""``/ui`` in headless Chromium, while requests run: what appears, and that it changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.live import Live, hello, serving
from tests.server.typist import typist_engine

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def slow() -> Iterator[Live]:
    """A model that takes its time, so that a page sees its requests run."""
    engine = typist_engine(max_total_tokens=2048, max_running_requests=2)
    logits = engine.typist.logits

    def slowly(hidden: Any) -> Any:
        time.sleep(0.02)
        return logits(hidden)

    engine.typist.logits = slowly
    with serving(engine) as live:
        yield live


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield made
        made.close()


@contextlib.contextmanager
def page_of(browser: Any, live: Live, width: int = 1200) -> Iterator[Any]:
    """The page, once it has data; fails if the page complains about anything."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.goto(f"{live.url}/ui")
    page.wait_for_selector("dl div")
    yield page
    context.close()
    assert complaints == []


@contextlib.contextmanager
def traffic(live: Live, clients: int = 4) -> Iterator[None]:
    """Requests that share a prefix, one after another, while the block runs."""
    done = threading.Event()

    def ask(number: int) -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            messages = hello(f"a prefix in common, then {number} and {turn}")
            live.chat(messages=messages, max_tokens=40, ignore_eos=True)

    with ThreadPoolExecutor(clients) as pool:
        for number in range(clients):
            pool.submit(ask, number)
        try:
            yield
        finally:
            done.set()


def tiles(page: Any) -> dict[str, float]:
    texts = page.eval_on_selector_all(
        "dl div", "all => all.map(t => [t.children[0].textContent, t.children[1].textContent])"
    )
    return {name: float(value.rstrip(" %").replace(",", "")) for name, value in texts}


def slots(page: Any) -> dict[str, int]:
    """The legend's counts, and the total that each entry names."""
    made = {}
    for text in page.eval_on_selector_all("#legend span", "all => all.map(e => e.textContent)"):
        kind, _, rest = text.partition(": ")
        count, _, total = rest.partition(" of ")
        made[kind] = int(count.replace(",", ""))
        made["total"] = int(total.replace(",", ""))
    return made


def sees(page: Any, condition: str) -> None:
    """Wait for it; the page's own policy forbids what Playwright waits with."""
    end = time.monotonic() + 15
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def test_an_idle_server(browser: Any, slow: Live) -> None:
    with page_of(browser, slow) as page:
        sees(page, "document.querySelector('#state').textContent == 'ready'")
        assert page.text_content("#model") == "toy"
        assert page.text_content("#requests") == "none"
        assert tiles(page)["running"] == 0


def test_requests_slots_tree_and_counters_follow_the_traffic(browser: Any, slow: Live) -> None:
    with page_of(browser, slow) as page:
        before = slots(page)
        assert before["total"] == 2048
        with traffic(slow):
            sees(page, "document.querySelector('#requests').textContent.includes('running')")
            sees(page, "document.querySelector('#requests').textContent.includes('waiting')")
            sees(page, "document.querySelectorAll('.node.held').length > 0")
            sees(
                page,
                "[...document.querySelectorAll('dl div')].some("
                "t => t.textContent.startsWith('running') && !t.textContent.endsWith('0'))",
            )
            sees(
                page,
                "document.querySelector('polyline').getAttribute('points').split(' ').length > 3",
            )
            busy = slots(page)
            assert busy["of one request"] + busy["prefixes in use"] > 0
            assert sum(busy.values()) == 2 * busy["total"]
            rate = tiles(page)["tokens per second"]
            assert rate > 0
        sees(page, "document.querySelector('#requests').textContent == 'none'")
        sees(page, "document.querySelectorAll('.node.held').length == 0")
        after = slots(page)
        assert after["of one request"] == after["prefixes in use"] == 0
        assert after["cached, evictable"] > before["cached, evictable"]
        assert "a prefix in common" in page.text_content("#tree")
        assert tiles(page)["cache hit rate"] > 0
        ages = page.eval_on_selector_all(".node b:last-child", "all => all.map(e => e.textContent)")
        assert all(age.endswith(" ago") for age in ages)
        assert page.text_content("#rate").startswith("now ")


def test_forced_and_evicted_tokens_are_counted(browser: Any, slow: Live) -> None:
    with page_of(browser, slow) as page:
        before = tiles(page)
        slow.chat(guided_choice=["a long forced answer that leaves no choice at all"])
        for number in range(12):
            slow.chat(messages=hello(f"{number} " * 120), max_tokens=1)
        sees(
            page,
            f"![...document.querySelectorAll('dl div')].some("
            f"t => t.textContent == 'evicted tokens{before['evicted tokens']:.0f}')",
        )
        after = tiles(page)
        assert after["forced tokens"] > before["forced tokens"]
        assert after["evicted tokens"] > before["evicted tokens"]


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, slow: Live, width: int) -> None:
    with traffic(slow), page_of(browser, slow, width) as page:
        sees(page, "document.querySelectorAll('.node').length > 1")
        sees(page, "document.querySelector('#requests').textContent.includes('running')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # The page is drawn anew twice a second, so everything is measured in one go.
        edges = page.evaluate(
            "['dl div', '#slots', '#chart', '#legend span', '.node']"
            ".map(name => document.querySelector(name).getBoundingClientRect())"
            ".map(box => [box.left, box.right])"
        )
        assert all(0 <= left < right <= width for left, right in edges)
        # All columns of the requests can be seen too.
        last = "document.querySelector('th:last-child').getBoundingClientRect().right"
        assert page.evaluate(last) <= width
        size = page.evaluate(
            "parseFloat(getComputedStyle(document.querySelector('.node')).fontSize)"
        )
        assert size >= 12


def test_kinds_of_slots_differ_without_colour(browser: Any, slow: Live) -> None:
    with page_of(browser, slow) as page:
        looks = page.eval_on_selector_all(
            "#legend i",
            "all => all.map(e => getComputedStyle(e).backgroundImage.replace("
            "/rgba?\\([^)]*\\)/g, ''))",
        )
        texts = page.eval_on_selector_all("#legend span", "all => all.map(e => e.textContent)")
        assert len(set(looks)) >= 3, looks
        assert len(set(texts)) == 4
        assert page.get_attribute("#slots", "aria-label").count(",") >= 3


def test_prompts_are_shown_as_text(browser: Any, slow: Live) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    slow.chat(messages=hello(evil), max_tokens=1)
    with page_of(browser, slow) as page:
        sees(page, "document.querySelector('#tree').textContent.includes('onerror')")
        assert page.query_selector("#tree img, #tree script") is None


def test_a_server_that_stops_is_noticed(browser: Any) -> None:
    with serving(typist_engine()) as live:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{live.url}/ui")
        page.wait_for_selector("dl div")
    sees(page, "document.querySelector('#state').textContent.startsWith('no connection')")
    context.close()
