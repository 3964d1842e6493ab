"""From fleet.toml and what was seen of its machines to a `FleetPlan`."""
