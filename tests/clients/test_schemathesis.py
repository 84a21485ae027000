"""schemathesis over the OpenAPI document: no request, valid or not, makes a 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.live import Live

pytest.importorskip("schemathesis")

SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]  # a request's own "timeout" may be tiny
"""


@pytest.mark.timeout(600)
def test_no_5xx(live: Live, tmp_path: Path) -> None:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(SETTINGS)
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    command = [
        *(sys.executable, "-c", code, "--config-file", str(settings)),
        *("run", f"{live.url}/openapi.json", "--mode", "all"),
        *("--max-examples", "20", "--checks", "not_a_server_error", "--phases", "fuzzing"),
        # Aborting everything would end the other requests of the run.
        *("--exclude-path", "/abort_request", "--generation-database", "none"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    live.engine.check()
