"""The commands of the guide, as somebody types them, against the server as it is started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Servers, emptied

GUIDE = Path(__file__).parents[3] / "docs" / "waiting-room.md"
SCRIPTS = re.findall(r"^```bash\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)

TEN_EVENTS = """
JSON="Content-Type: application/json"
for i in 1 2 3 4 5 6 7 8 9 10; do
  curl -sf -X POST $HOST/queue/join -H "$JSON" -H "Idempotency-Key: key-$i-$RANDOM" \\
    -d "{\\"event_id\\": \\"evt_$i\\", \\"user_id\\": \\"user_$i\\"}" &
done
wait
curl -sf -X POST $HOST/queue/join -H "$JSON" -d '{"event_id": "evt_test", "user_id": "test"}'
"""


@pytest.fixture(params=["valkey-standalone", "valkey-cluster"])
def url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[str]:
    """``toril server``, as a process."""
    redis = emptied(servers.get(request.param)).url
    command = [sys.executable, "-m", "toril.cli", "server", "--url", redis, "--port", "0"]
    env = os.environ | {"TORIL_HOME": str(tmp_path), "COLUMNS": "200"}
    log = tmp_path / "log.txt"
    with log.open("w") as said:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"waiting +(http://\S+)/queue/EVENT", line):
                yield found[1]
                break
        else:
            pytest.fail(f"it did not start: {log.read_text()}")
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[0]
    assert process.returncode == 0, rest + log.read_text()
    assert "CROSSSLOT" not in log.read_text()
    assert "Traceback" not in log.read_text()


def test_no_crossslot_the_guides_commands_run(url: str, tmp_path: Path) -> None:
    (script,) = SCRIPTS
    assert "http://localhost:8000" in script
    assert "left" in shell(script.replace("http://localhost:8000", url), tmp_path)
    assert shell(f"HOST={url}/api/v1\n{TEN_EVENTS}", tmp_path).count('"waiting_token"') == 11


def shell(script: str, place: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        cwd=place,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stdout
    return done.stdout
