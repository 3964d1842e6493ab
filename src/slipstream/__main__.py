"""`python -m slipstream`, for machines where the script is not on the path."""

from slipstream.cli.main import run_and_exit

run_and_exit()
