"""`python -m slipstream`, for machines where the script is not on the path.

Python looks for modules in the working directory first then, which may be a model's.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from slipstream.cli.main import run_and_exit

run_and_exit()
