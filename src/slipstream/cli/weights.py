"""Weights that a verb needs, downloaded and checked before an engine starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipstream.cli.screen import Screen
from slipstream.planning import LaunchPlan
from slipstream.serving.served_plan import localize
from slipstream.serving.weights.obtaining import LocalModel, obtain


@dataclass(frozen=True, slots=True)
class WeightsOnDisk:
    """Local models, each obtained once per command; `report` defaults to the screen."""

    screen: Screen
    environment: Mapping[str, str] = field(repr=False)
    accept_changes: bool = False
    report: Callable[[str], None] | None = None
    _models: dict[tuple[str, str | None, bool], LocalModel] = field(default_factory=dict)

    def find(self, name: str, revision: str | None, *, with_code: bool = False) -> LocalModel:
        """Return the local copy of a model, downloading it if necessary."""
        key = (name, revision, with_code)
        if key not in self._models:
            self._models[key] = obtain(
                name,
                revision=revision,
                environment=self.environment,
                report=self.report or self.screen.show_progress,
                draw=self.screen.draw if self.screen.live else None,
                accept_changes=self.accept_changes,
                with_code=with_code,
            )
        return self._models[key]

    def localize(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with local folders as models, and its engine offline."""
        with_code = plan.trusts_remote_code
        return localize(plan, lambda name, revision: self.find(name, revision, with_code=with_code))
