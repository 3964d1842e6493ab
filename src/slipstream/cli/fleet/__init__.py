"""The verbs of `slipstream fleet`, one thin file each."""
