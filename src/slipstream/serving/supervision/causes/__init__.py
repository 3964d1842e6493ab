"""Why an engine ended, and what its plan gives up for it."""
