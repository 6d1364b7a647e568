"""How many tokens fit into a step of so many milliseconds, from the steps measured so far.

Step time is taken as base + tokens * each, fitted by least squares over recent steps (older ones fade). Steps of much the same size say
nothing about `each`, so what was known of it is kept while a worker only decodes.

What contradicts the line takes weight from all that was said before. A step may be late for reasons of its own, though (memory that is
touched for the first time, a core that somebody else has): a single one counts only so far. And as long as all of a step's time is blamed
on its tokens, larger steps are early and smaller ones late: that contradicts nothing.
"""

from __future__ import annotations

FADE = 0.98  # half of the weight is on the last 34 steps
# Standard deviation of the steps' sizes from which on their slope is believed: a share of their mean, and so many tokens.
LEAST_SPREAD, LEAST_SPREAD_TOKENS = 0.5, 5.0
LATE, EARLY = 1.5, 0.8  # of what was expected: a step outside of these contradicts it
STALE_STEPS = 32  # since the slope was last believed: from then on budgets are doubled, so that sizes differ again
FIRST_TOKENS = 128  # before anything is measured: 90 % of a CPU's peak rate, and short on a GPU


class Pace:
    """A fading linear fit of step time over tokens."""

    def __init__(self, max_step_tokens: int) -> None:
        self.max_step_tokens = max_step_tokens
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._slope = 0.0  # the last that was believed; 0 = none yet
        self._stale = 0  # steps since
        self._late = False  # the last step was
        self._largest = 0.0  # of recent steps

    def measured(self, tokens: int, milliseconds: float) -> None:
        """Take in one step. Steps without tokens or without a time say nothing."""
        if tokens <= 0 or milliseconds <= 0:
            return
        base, each = self.line()
        expected, usual = base + each * tokens, self._x / self._weight if self._weight else tokens
        fade = FADE
        late, self._late = self._late, tokens >= usual and milliseconds > LATE * expected > 0
        if self._late and late:
            fade *= expected / milliseconds
        elif self._late:
            milliseconds = LATE * expected
        elif tokens <= usual and milliseconds < EARLY * expected:
            fade *= milliseconds / expected
        self._largest = max(tokens, FADE * self._largest)
        self._weight = self._weight * fade + 1
        self._x = self._x * fade + tokens
        self._y = self._y * fade + milliseconds
        self._xx = self._xx * fade + tokens * tokens
        self._xy = self._xy * fade + tokens * milliseconds
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance > max(LEAST_SPREAD * mean_x, LEAST_SPREAD_TOKENS) ** 2:
            self._slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / variance)
            self._stale = 0
        else:
            self._stale += 1

    def line(self) -> tuple[float, float]:
        """(base, each) in milliseconds; (0, 0) before anything was measured."""
        if not self._weight:
            return 0.0, 0.0
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        most = mean_y / mean_x  # all of it blamed on the tokens
        each = min(self._slope, most) or most
        return mean_y - each * mean_x, each

    @property
    def learnt(self) -> bool:
        """Whether steps of different sizes have shown what a token costs: before, all of a step's time is blamed on its tokens."""
        return self._slope > 0

    def tokens_within(self, milliseconds: float, decode_rows: int) -> int:
        """Known tokens that a step may take beside so many decode rows to last about so long.

        Prompts get half of that time in any case, and half of what the step takes without them: else, where decoding alone takes longer,
        they would hardly advance, and whoever waits would pay for each step's fixed cost again and again.

        Without that, a budget could keep itself small: steps of one size say nothing of what a token costs, all is blamed on the tokens, and
        few are let in. So a budget is doubled when nothing was learnt for long. But no step is planned that is far larger than those that
        were measured: what it would take is only guessed.
        """
        base, each = self.line()
        if not each:
            return FIRST_TOKENS
        taken = base + each * decode_rows
        spare = max(milliseconds - taken, milliseconds / 2, taken / 2)
        wanted = int(spare / each) * (2 if self._stale >= STALE_STEPS else 1)
        return min(wanted, max(FIRST_TOKENS, int(2 * self._largest)))
