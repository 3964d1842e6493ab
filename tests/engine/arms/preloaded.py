"""vLLM imported once: each script that this process is sent runs in a fork of it.

Importing vLLM takes ten seconds, which is most of the time of a script that starts no engine. A
fork finds what a new process would: its environment, its job on stdin, its log. It ends with this
process, and this process with the tests.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(order: dict[str, Any]) -> NoReturn:
    """Run a script to its end, as a process of its own."""
    end_with_parent()
    signal.alarm(order["seconds"])
    os.environ.clear()
    os.environ.update(order["environment"])
    code = 1
    try:
        with Path(order["log"]).open("w") as log, Path(order["job"]).open() as job:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
            sys.stdin = job
            runpy.run_path(order["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a process that ends says why
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answer each order, a line of JSON, with the exit code of its script."""
    end_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where vLLM writes its warnings
    from vllm import LLM  # noqa: F401 - and with it all that is imported here at all

    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
    os._exit(0)  # to take down all that vLLM imported would take seconds


main()
