"""A key for a while, made by whoever may write the key file of a run, to ask that run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from slipstream.errors import InvalidInputError
from slipstream.serving.access.keys import KeyTerms, make_key, revoke_key
from slipstream.serving.run import Run

BORROWED_FOR = timedelta(minutes=15)
# The gate follows its key file four times a second.
FOLLOWED_SECONDS = 1.0


@contextmanager
def borrow_key(run: Run) -> Iterator[str | None]:
    """Have a key that the run's gate takes, None if it asks for none; then it is revoked."""
    if not run.terms.needs_key or run.terms.keys_file is None:
        yield None
        return
    file, now = run.terms.keys_file, datetime.now(UTC).replace(microsecond=0)
    terms = KeyTerms(routes=("chat", "completions", "models", "metrics"))
    made = make_key(file, "verify", now=now, expires=now + BORROWED_FOR, terms=terms)
    try:
        time.sleep(FOLLOWED_SECONDS)
        yield made.secret
    finally:
        with suppress(InvalidInputError):  # The file was replaced by one without it.
            revoke_key(file, made.key.id)
