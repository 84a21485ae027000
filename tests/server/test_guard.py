"""What stands before every route: errors' shape, keys, hosts, origins, sizes, content types."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.server.live import Live, error_of, hello, serving

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/generate", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_unknown_urls(live: Live, method: str, path: str, status: int, code: str) -> None:
    assert error_of(live.http.request(method, path), status)["code"] == code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"[" * 100_000,
        b"1" * 10_000,
    ],
)
def test_what_is_not_json(live: Live, body: bytes) -> None:
    error = error_of(live.http.post(CHAT, content=body, headers=JSON))
    assert error["code"] in ("invalid_json", "invalid_type")


@pytest.mark.parametrize("body", ["[]", "null", "3", '"x"'])
def test_json_that_is_no_object(live: Live, body: str) -> None:
    assert error_of(live.http.post(CHAT, content=body, headers=JSON))["code"] == "invalid_type"


def test_forms_are_refused(live: Live) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        body = json.dumps({"messages": hello()})
        response = live.http.post(CHAT, content=body, headers={"content-type": kind})
        assert error_of(response, 415)["code"] == "unsupported_media_type"
    kind = "application/json; charset=utf-8"
    response = live.http.post(CHAT, content=body, headers={"content-type": kind})
    assert response.status_code == 200


def test_request_ids(live: Live) -> None:
    assert live.http.get("/health").headers["x-request-id"].startswith("req-")
    named = live.http.get("/health", headers={"x-request-id": "my-1"})
    assert named.headers["x-request-id"] == "my-1"
    for bad in ("a b", "x" * 200):
        response = live.http.get("/health", headers={"x-request-id": bad})
        assert response.headers["x-request-id"].startswith("req-")


def test_errors_stay_small(live: Live) -> None:
    response = live.chat(**{f"{'x' * 4000}{i}": 1 for i in range(100)})
    error_of(response)
    assert len(response.content) < 3000
    messages = [{"role": "user", "content": 3}] * 20_000
    response = live.chat(messages=messages)
    assert error_of(response)["param"] == "messages.0.content"
    assert len(response.content) < 3000


def test_a_million_mistakes_are_one_error(live: Live) -> None:
    """Work on errors that grows with the square of their number once stopped a server."""
    for path, body in (
        ("/detokenize", {"tokens": ["a"] * 300_000}),
        ("/v1/completions", {"prompt": [[1], *["a"] * 300_000]}),
        (
            "/v1/chat/completions",
            {"messages": hello(), "logit_bias": {str(i): [] for i in range(20_000)}},
        ),
    ):
        response = live.post(path, **body)
        error_of(response)
        assert len(response.content) < 3000


def test_big_bodies() -> None:
    with serving(max_body_size=1000) as live:
        error = error_of(live.chat(messages=hello("x" * 2000)), 413)
        assert error["code"] == "request_too_large"
        pieces = (b"x" * 100 for _ in range(50))
        response = live.http.post(CHAT, content=pieces, headers=JSON)
        assert error_of(response, 413)["code"] == "request_too_large"
        assert live.chat().status_code == 200


def test_api_key() -> None:
    with serving(api_key="secret", wait=False) as live:
        assert live.http.get("/health").status_code == 200
        assert live.http.get("/ready").status_code in (200, 503)
        for path in ("/v1/models", "/metrics", "/nope", "/get_model_info", "/openapi.json"):
            response = live.http.get(path)
            assert error_of(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for given in ("Bearer wrong", "Bearer secret2", "Basic secret", "secret", "Bearer"):
            response = live.http.get("/v1/models", headers={"authorization": given})
            assert response.status_code == 401
        while live.http.get("/ready").status_code != 200:
            pass
        for path in ("/ui", "/debug/radix"):
            response = live.http.get(path)
            assert error_of(response, 401)
            assert response.headers["www-authenticate"].startswith("Basic ")
            assert live.http.get(path, auth=("me", "secret")).status_code == 200
            assert live.http.get(path, auth=("secret", "wrong")).status_code == 401
        assert live.http.get("/v1/models", auth=("me", "secret")).status_code == 401
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            assert live.http.get("/v1/models", headers=headers).status_code == 200


def test_foreign_hosts_and_origins(live: Live) -> None:
    port = httpx.URL(live.url).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
        response = live.http.get("/v1/models", headers={"host": host})
        assert error_of(response, 403)["code"] == "host_not_allowed"
    for host in ("localhost", f"localhost:{port}", "[::1]:1"):
        assert live.http.get("/v1/models", headers={"host": host}).status_code == 200
    for origin in ("http://evil.example", "null"):
        response = live.http.get("/v1/models", headers={"origin": origin})
        assert error_of(response, 403)["code"] == "origin_not_allowed"
        assert "access-control-allow-origin" not in response.headers
    assert live.http.get("/v1/models", headers={"origin": live.url}).status_code == 200


def test_allowed_hosts_and_origins() -> None:
    page = "https://page.example"
    with serving(allowed_hosts=("my.host",), allowed_origins=(page,)) as live:
        headers = {"host": "my.host", "origin": page}
        response = live.http.get("/v1/models", headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == page
        preflight = {**headers, "access-control-request-method": "POST"}
        response = live.http.options(CHAT, headers=preflight)
        assert response.status_code == 204
        assert "content-type" in response.headers["access-control-allow-headers"]


def test_unknown_fields_may_be_allowed() -> None:
    with serving(allow_unknown_fields=True, accept_any_model=True) as live:
        assert live.chat(foo=1, model="gpt-4").status_code == 200
        error_of(live.chat(guided_thing="x"))


def test_metrics(live: Live) -> None:
    live.chat()
    live.http.get("/nope")
    text = live.http.get("/metrics").text
    assert 'sglang:num_running_reqs{model_name="toy"} 0.0' in text
    assert "sglang:e2e_request_latency_seconds_bucket" in text
    assert f'sglang:http_responses_total{{endpoint="{CHAT}",status="200"}}' in text
    assert 'sglang:http_responses_total{endpoint="other",status="404"}' in text
    assert "# TYPE sglang:prompt_tokens_total counter" in text


def test_openapi_describes_the_bodies(live: Live) -> None:
    document = live.http.get("/openapi.json").json()
    operation = document["paths"][CHAT]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    name = reference.rsplit("/", 1)[1]
    assert "messages" in document["components"]["schemas"][name]["properties"]
    assert "422" not in json.dumps(document)
    reference = operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith("/Error")
