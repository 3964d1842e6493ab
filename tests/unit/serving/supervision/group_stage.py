"""Two ranks of an engine on one machine: supervisors at two loopback addresses, fake engines."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import slipstream
from slipstream.hardware import Host
from slipstream.planning.group import Member
from slipstream.planning.spreading import spread_plan
from slipstream.serving.run import Terms
from slipstream.serving.served_plan import follow_head
from slipstream.serving.supervision.engine_process import choose_port
from slipstream.serving.supervision.follower import Follower
from slipstream.serving.supervision.supervisor import Supervisor
from tests.unit.serving.supervision.fake_engine import Stage

MEMBERS = (
    Member(name="one", address="127.0.0.1", interface="lo"),
    Member(name="two", address="127.0.0.2", interface="lo"),
)
WITHIN_SECONDS = 90
# What `slipstream.vllm_plugin.headless` imports, and a rank that runs until it is ended.
_MODULES = {
    "vllm/utils/argparse_utils.py": "class FlexibleArgumentParser: pass",
    "vllm/entrypoints/serve/utils/api_utils.py": "def cli_env_setup(): pass",
    "vllm/entrypoints/launchers/cli_args.py": """
import argparse, sys
class Parser:
    def parse_args(self):
        return argparse.Namespace(headless="--headless" in sys.argv)
def make_arg_parser(parser):
    return Parser()
""",
    "vllm/entrypoints/cli/serve.py": """
import json, os, sys, time
from pathlib import Path
class ServeSubcommand:
    def validate(self, arguments): pass
    def cmd(self, arguments):
        folder = Path(os.environ["FAKE"])
        started = len(list(folder.glob("start-*")))
        (folder / f"start-{started}").write_text(json.dumps([os.getpid(), *sys.argv[1:]]))
        for rule in json.loads((folder / "rules").read_text()):
            if all(word in " ".join(sys.argv) for word in rule["with"]):
                print(rule["words"], flush=True)
                os._exit(1)
        time.sleep(600)
""",
}


class GroupStage:
    """A head and a follower, each with its run and its fake engine."""

    def __init__(self, folder: Path, host: Host) -> None:
        secret = folder / "a.key"
        secret.write_bytes(b"s" * 32)
        secret.chmod(0o600)
        for part in ("head", "follower"):
            (folder / part).mkdir()
        self.head = Stage(folder / "head", host)
        self.follower = Stage(folder / "follower", host, terms=Terms(gated=False))
        for name, text in _MODULES.items():
            file = self.follower.fake / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        source = Path(slipstream.__file__).parents[1]
        self.follower.environment["PYTHONPATH"] += f":{source}"
        plans = spread_plan(
            self.head.run.plan, "a", MEMBERS, secret_file=str(secret), watch_port=choose_port(None)
        )
        for stage, plan in zip((self.head, self.follower), plans, strict=True):
            served = follow_head(plan) if plan.group and plan.group.is_follower else plan
            stage.event_log.update(plan=served)
        self._supervisors: list[Supervisor] = []
        self._serving: list[asyncio.Task[None]] = []
        self.faults: list[BaseException | None] = []

    def serve(self, act: Callable[["GroupStage"], Coroutine[None, None, None]]) -> None:
        """Supervise both until `act` is over."""

        async def serve() -> None:
            self._begin(Supervisor(self.head.event_log, self.head.environment))
            self.begin_following()
            acting = asyncio.create_task(act(self))
            done, _ = await asyncio.wait((acting,), timeout=WITHIN_SECONDS)
            for one in self._supervisors:
                one.stop()
            ends = await asyncio.gather(*self._serving, return_exceptions=True)
            self.faults = [end if isinstance(end, BaseException) else None for end in ends]
            assert done, self.messages()
            await acting

        asyncio.run(serve())

    def begin_following(self) -> None:
        """Start the follower's supervisor, for the first time or after it has left."""
        self._begin(Follower(self.follower.event_log, self.follower.environment))

    async def leave(self) -> None:
        """Stop the follower's supervisor, as a machine that is started anew does."""
        self._supervisors[-1].stop()
        await self._serving[-1]
        self.follower.event_log.run = self.follower.run.model_copy(update={"state": "planned"})

    def _begin(self, one: Supervisor) -> None:
        self._supervisors.append(one)
        self._serving.append(asyncio.create_task(one.serve()))

    async def reach_ready(self, times: int = 1) -> None:
        await self.head.reach("ready", times)
        await self.follower.reach("ready", times)

    def messages(self) -> str:
        return f"{self.head.messages()}\n---\n{self.follower.messages()}"
