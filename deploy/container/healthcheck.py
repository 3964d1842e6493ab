"""Docker's health check: ask the newest run whether it is ready, wherever it listens."""

import json
import os
from pathlib import Path
from ssl import CERT_NONE, create_default_context
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
runs = Path(state, "slipstream", "runs").glob("*/run.json")
newest = max(runs, key=lambda record: record.stat().st_mtime, default=None)
url = json.loads(newest.read_text())["url"] if newest else None
if url is None:
    raise SystemExit("no engine has been started yet")
# Nothing secret is sent, and the certificate is for the name that others ask for.
context = create_default_context()
context.check_hostname, context.verify_mode = False, CERT_NONE
# A proxy in the environment is not for this container itself.
opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
with opener.open(f"{url}/readyz", timeout=4):
    pass
