"""An engine of formulas: what its steps take and yield is known, and so is the best length."""

from dataclasses import dataclass, field
from random import Random

from slipstream.vllm_plugin.steering.draft_length import DraftLength


@dataclass
class SimulatedEngine:
    """Steps of a fixed part, verified tokens and drafting, with noise; a few of them stall."""

    fixed: float = 0.020
    per_token: float = 0.0015
    drafting: float = 0.006
    per_draft: float = 0.0004
    rates: tuple[float, ...] = (0.8, 0.75, 0.7, 0.7, 0.65, 0.6, 0.6)
    noise: float = 0.05
    slowness: float = 1.0
    chance: Random = field(default_factory=lambda: Random(7))

    def cost(self, sequences: int, verified: int, drafted: int) -> float:
        """Return the usual seconds of a step."""
        seconds = self.fixed + self.per_token * sequences * (verified + 1)
        if drafted:
            seconds += self.drafting + self.per_draft * sequences * (drafted + 1)
        return seconds * self.slowness

    def expect(self, sequences: int, length: int) -> float:
        """Return the tokens per second of a length that never changes."""
        tokens = reached = 1.0
        for rate in self.rates[:length]:
            reached *= rate
            tokens += reached
        return sequences * tokens / self.cost(sequences, length, length)

    def find_best(self, sequences: int) -> float:
        """Return the tokens per second of the best length."""
        return max(self.expect(sequences, length) for length in range(len(self.rates) + 1))

    def accept(self, drafted: int) -> int:
        """Draw how many tokens of a draft are accepted."""
        accepted = 0
        while accepted < drafted and self.chance.random() < self.rates[accepted]:
            accepted += 1
        return accepted

    def run(self, control: DraftLength, sequences: int, steps: int) -> float:
        """Step under control, and return the tokens per second."""
        seconds, tokens, verified = 0.0, 0, control.chosen
        for _ in range(steps):
            drafted = control.choose(sequences)
            took = self.cost(sequences, verified, drafted)
            took *= 1 + self.noise * self.chance.gauss(0, 1)
            took *= 5 if self.chance.random() < 0.005 else 1
            for _ in range(sequences):
                accepted = self.accept(verified)
                tokens += 1 + accepted
                if verified:
                    control.observe_draft(verified, accepted)
            if verified == drafted:
                control.observe(sequences, verified, took)
            seconds, verified = seconds + took, drafted
        return tokens / seconds
