"""Docker's health check: ask the newest run whether it is ready, wherever it listens."""

import json
import os
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
runs = Path(state, "slipstream", "runs").glob("*/run.json")
newest = max(runs, key=lambda record: record.stat().st_mtime, default=None)
url = json.loads(newest.read_text())["url"] if newest else None
if url is None:
    raise SystemExit("no engine has been started yet")
# A proxy in the environment is not for this container itself.
with build_opener(ProxyHandler({})).open(f"{url}/readyz", timeout=4):
    pass
