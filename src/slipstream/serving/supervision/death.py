"""`Death`: how an engine ends that nobody asked to end."""

from slipstream.serving.supervision.ladder import Cause


class Death(Exception):
    """An end that nobody asked for; the cause is None if exit code and log have to show it.

    The exit code is None while the engine still runs: how it ends then is our doing.
    """

    def __init__(
        self,
        cause: Cause | None,
        message: str,
        exit_code: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
