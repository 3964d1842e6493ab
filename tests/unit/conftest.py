"""A busy machine is no failure, and neither is one that starts the tests in the background."""

import signal

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# A shell's background job ignores interrupts, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
