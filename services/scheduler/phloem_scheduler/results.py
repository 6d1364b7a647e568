"""What a step yielded becomes output: commit tokens, find ends, hand frames to the outbox, pages to the tree."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from phloem_proto.codec import unpack_floats, unpack_ids
from phloem_proto.messages import End, Result, RowLogprobs, TokenLogprob, TopLogprob

from .ends import failed, token_end
from .lifecycle import Lifecycle
from .rows import Row
from .worker import SentPlan, WorkerState


class BadResult(Exception):
    """Raised when a result does not fit the oldest plan without one: the session can't be trusted any more."""


class Results:
    """Applies results in the order of their plans."""

    def __init__(self, life: Lifecycle) -> None:
        self.life = life

    def commit(self, worker: WorkerState, result: Result) -> None:
        """Apply one result. Raises BadResult, with nothing applied, if it does not fit the plan it answers."""
        plan, ids = matching_plan(worker, result)
        worker.plans.popleft()
        worker.pace.measured(plan.tokens, result.forward_ms)
        counters = self.life.counters
        counters.steps += 1
        ended = frozenset(unpack_ids(result.grammar_ended))
        failures = {failure.row: failure for failure in result.failures}
        logprobs: dict[int, list[RowLogprobs]] = {}
        for entry in result.logprobs:
            logprobs.setdefault(entry.row, []).append(entry)
        at = 0
        for index, row in enumerate(plan.rows):
            row.in_flight -= 1
            tokens = ids[at : at + result.yields[index]]
            at += len(tokens)
            if not row.commits:
                counters.wasted_draws += plan.draws[index]
                continue
            if index in logprobs:
                take_logprobs(row, logprobs[index])
            if index in failures:
                self.life.end(row.choice, failed(failures[index].code, failures[index].message))
                if failures[index].code == "nan":
                    worker.cache.forget(row.node)
            elif plan.draws[index]:
                self._drawn(worker, row, tokens, index in ended)
            if not row.opened:
                self.life.settle(row)

    def _drawn(self, worker: WorkerState, row: Row, tokens: array[int], grammar_ended: bool) -> None:
        """row should have drawn: its tokens become output; none means that the same position runs again."""
        choice, end = row.choice, None
        taken = 0
        for token in tokens[: max(0, row.limit - len(choice.output))]:
            choice.output.append(token)
            taken += 1
            if token >= worker.profile.vocab_size:
                end = End("error", code="internal", message="the model drew a token outside its vocabulary")
            else:
                end = token_end(token, choice.request, worker.profile.eos_ids)
            if end is not None:
                break
        if end is None and len(choice.output) >= row.limit:
            end = End("length")
        elif end is None and grammar_ended:
            end = End("stop")
        self.life.counters.output_tokens += taken
        if end is not None:
            self.life.end(choice, end, taken)
            return
        if not taken:
            self.life.counters.late_masks += 1
            row.planned -= 1
            row.quota += 1
            return
        self.life.outbox.tokens(choice, taken, None)
        if row.opened and row.filled_pages > row.tree_pages:
            worker.publish(row)


def matching_plan(worker: WorkerState, result: Result) -> tuple[SentPlan, array[int]]:
    """The plan that result answers, and the ids it carries. Raises BadResult."""
    if not worker.plans or worker.plans[0].step != result.step:
        raise BadResult(f"result of step {result.step} answers no plan that is due")
    plan = worker.plans[0]
    if len(result.yields) != len(plan.rows):
        raise BadResult(f"step {result.step} has {len(plan.rows)} rows, its result {len(result.yields)}")
    if len(result.ids) != 4 * sum(result.yields):
        raise BadResult(
            f"step {result.step} yields {sum(result.yields)} tokens, its result holds {len(result.ids)} bytes of ids"
        )
    return plan, unpack_ids(result.ids)


def take_logprobs(row: Row, entries: list[RowLogprobs]) -> None:
    """Keep what a row's logprobs say; prompt positions that are known already (from before a retraction) are skipped."""
    choice = row.choice
    for entry in entries:
        if not entry.prompt:
            choice.logprobs.extend(token_logprobs(entry))
        elif choice.wants_prompt_logprobs:
            known_to = choice.request.params.logprob_start + len(choice.prompt_logprobs)
            choice.prompt_logprobs.extend(list(token_logprobs(entry))[max(0, known_to - entry.start) :])


def token_logprobs(entry: RowLogprobs) -> Iterator[TokenLogprob]:
    """Unpack struct-of-arrays into one part for each token."""
    ids, values = unpack_ids(entry.ids), unpack_floats(entry.logprobs)
    top_ids, top_values = unpack_ids(entry.top_ids), unpack_floats(entry.top_logprobs)
    for at, (token, value) in enumerate(zip(ids, values, strict=True)):
        span = slice(at * entry.top, (at + 1) * entry.top)
        top = tuple(TopLogprob(i, v) for i, v in zip(top_ids[span], top_values[span], strict=True))
        yield TokenLogprob(token, value, top)
