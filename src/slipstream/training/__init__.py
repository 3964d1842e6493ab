"""From a target and prompts to a drafter that fits them: `TrainRun`."""
