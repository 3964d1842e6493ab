"""The entry point: parse the command line, run one verb, and return an exit code."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from slipstream.cli.arguments import parse_arguments
from slipstream.cli.quick_help import StandIns, asks_for_help
from slipstream.cli.screen import open_screen
from slipstream.errors import ExitCode, MissingPartError, SlipstreamError


class _Bug(SlipstreamError):
    """An unexpected exception; raised only here."""

    exit_code = ExitCode.BUG


def run_and_exit() -> None:
    """Run the command of this process; SIGTERM and SIGHUP unwind it, so that no child is left."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _leave)
    if asks_for_help(sys.argv[1:]):
        sys.meta_path.insert(0, StandIns())
    sys.exit(run(sys.argv[1:], os.environ))


def _name_fault(fault: Exception, arguments: Sequence[str]) -> SlipstreamError:
    """Tell a package that cannot be imported here from a bug of ours."""
    if isinstance(fault, ImportError) and (fault.name or "").partition(".")[0] != "slipstream":
        cause: BaseException = fault
        while cause.__cause__ is not None:
            cause = cause.__cause__
        first = (str(cause).splitlines() or [""])[0]
        return MissingPartError(
            f"a package of this environment cannot be imported: {first}",
            hint="install Slipstream again, in a new environment"
            if "doctor" in arguments
            else "slipstream doctor",
        )
    return _Bug(
        f"this is a bug in slipstream, please report it: {type(fault).__name__}: {fault}",
        hint="slipstream doctor --bundle bug.zip",
    )


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one command line and return its exit code."""
    screen = open_screen(
        environment, as_json="--json" in arguments, verbose="--verbose" in arguments
    )
    try:
        verb, options, help_text = parse_arguments(arguments, environment)
        if verb is None:
            screen.output.write(help_text)
            return ExitCode.DONE
        return verb.run(options, screen)
    except SlipstreamError as error:
        screen.fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left: nothing is wrong, and Python's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except Exception as fault:  # noqa: BLE001 the last line of defence: a bug becomes a message
        if isinstance(fault.__cause__, KeyboardInterrupt):
            # Python 3.11 wraps what hits it while a class is being made.
            return ExitCode.INTERRUPTED
        found = _name_fault(fault, arguments)
        found.__cause__ = fault
        screen.fail(found)
        return found.exit_code
    finally:
        screen.rest()
