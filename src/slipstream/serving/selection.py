"""The run that a command means: by its id, a prefix of it, or the newest."""

from pathlib import Path

from slipstream.errors import InvalidInputError, UsageError
from slipstream.serving.run import Run, RunFolder, find_live, is_alive, list_runs
from slipstream.serving.supervision.engine_session import list_session

_PROC = Path("/proc")


def choose_run(root: Path, name: str | None) -> tuple[RunFolder, Run]:
    """Return the run of a name, or the newest of those that begin so."""
    return _match(root, name)[0]


def choose_running(
    root: Path, name: str | None, proc: Path = _PROC, *, verb: str = "stop"
) -> tuple[RunFolder, Run]:
    """Return the one run that has a process left; `verb` is what was to be done with it."""
    matched = _match(root, name)
    running = [(folder, run) for folder, run in matched if not is_over(run, proc)]
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} runs are live{f' that start with {name}' if name else ''}",
            details=tuple(run.id for _, run in running),
            hint=f"slipstream {verb} {running[0][1].id}",
        )
    if running:
        return running[0]
    message = "no run is live" if name is None else f"{matched[0][1].id} has already ended"
    raise InvalidInputError(message, hint="slipstream status")


def find_server(root: Path, name: str | None, *, hint: str) -> tuple[str, Run | None]:
    """Return a live run by its id or address, or the URL of any server."""
    for _, found in find_live(root):
        if found.url and name in (None, found.id, found.url):
            return found.url, found
    if name is None or "://" not in name:
        what = "no run is live" if name is None else f"no run {name} is live"
        raise InvalidInputError(what, hint=hint)
    return name, None


def is_over(run: Run, proc: Path = _PROC) -> bool:
    if is_alive(run.supervisor, proc):
        return False
    return run.engine is None or not list_session(run.engine, proc)


def _match(root: Path, name: str | None) -> list[tuple[RunFolder, Run]]:
    runs = list_runs(root)
    if not runs:
        raise InvalidInputError(f"no runs in {root}", hint="slipstream serve TARGET")
    exact = [pair for pair in runs if pair[1].id == name]
    matched = exact or [pair for pair in runs if pair[1].id.startswith(name or "")]
    if not matched:
        raise InvalidInputError(f"unknown run {name}", hint="slipstream status")
    return matched
