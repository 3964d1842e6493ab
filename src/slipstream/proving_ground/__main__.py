"""`python -m slipstream.proving_ground`: build the model if necessary and print its folder."""

import os
import sys

from slipstream.errors import SlipstreamError
from slipstream.proving_ground.smollm2 import make_smollm2
from slipstream.user_folders import slipstream_cache

try:
    sys.stdout.write(f"{make_smollm2(slipstream_cache(os.environ))}\n")
except SlipstreamError as error:
    sys.exit(f"error: {error.message}\n\nhint: {error.hint}")
except ImportError as error:
    sys.exit(f"error: a package cannot be imported: {error}\n\nhint: slipstream doctor")
