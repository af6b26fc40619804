"""Several stages of a pipeline on one device, which take turns (interleaved 1F1B).

`virtual_stages` stages on each of p devices, the first of all on the first device, the last on the
last. The order of the passes on device i is that of torch's ScheduleInterleaved1F1B (torch 2.13,
`torch/distributed/pipelining/schedules.py`: `_calculate_single_rank_operations`; Narayanan et al.
2021, §2.2.2):

- Microbatches go in rounds of p or more: those of a round pass one stage of the device, then the
  next; in backward the last stage is first.
- Forward passes come first, as many as a round has in all stages but the last, and 2 (p − 1 − i)
  more. Then one forward and one backward pass in turn, and the remaining backward passes.

What a microbatch leaves in a stage, and what is received, is as in `pipeline_stages.py`. A gradient
is sent, and freed, right after its backward pass; logits are not held until the next ones.

The peak is found among few of the moments before backward passes, which are numbered from 0. From
one to the next, live bytes change by as much each time, but at the beginning and the end of a
round, and where forward passes end.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_values import stage_index
from modelbudget.memory.pipeline_stages import Stage, backward_levels, is_first, is_last, outputs


class Order(NamedTuple):
    """The order of passes on one device, as numbers of passes of any of its stages.

    `n_stage`: stages of the device; `n_pass`: forward passes, and as many backward passes;
    `in_round`: microbatches of a round; `n_round`: rounds; `ahead`: forward passes before the first
    that a backward pass follows; `in_flight`: most passes forward whose backward is to come.
    """

    n_stage: Any
    n_pass: Any
    in_round: Any
    n_round: Any
    ahead: Any
    in_flight: Any

    @property
    def last_forward(self):
        """The number of the backward pass that follows the last forward pass."""
        return largest(0, self.n_pass - self.ahead - 1)

    def of_stage(self, turn, n):
        """Count the passes of the stage with a turn, from 0, among the first `n`."""
        in_all = self.n_stage * self.in_round
        whole = n // in_all
        rest = n - whole * in_all - turn * self.in_round
        return whole * self.in_round + least(self.in_round, largest(0, rest))


def least(x, y):
    """Return the smaller of two values."""
    return x + y - largest(x, y)


def order(r: Run) -> Order:
    """Return the order of the passes on the device whose bytes count."""
    n_pass = r.virtual_stages * r.n_microbatch
    n_round = largest(1, r.n_microbatch // r.pipeline_parallel)
    in_round = ceil_div(r.n_microbatch, n_round)
    later = r.pipeline_parallel - 1 - stage_index(r)
    ahead = least(n_pass, (r.virtual_stages - 1) * in_round + 2 * later)
    return Order(r.virtual_stages, n_pass, in_round, n_round, ahead, least(n_pass, ahead + 1))


def in_flight(r: Run) -> tuple:
    """Count the passes between forward and backward at once.

    Of all stages, and those of the stage with an end of the model at that time.
    """
    one = order(r)
    # Those of one round wait for their backward passes when those of the next have gone forward.
    of_first = least(least(r.n_microbatch, 2 * one.in_round), one.in_flight)
    return one.in_flight, is_first(r) * of_first + is_last(r)


def _turns(r: Run) -> tuple:
    """Return the turns, in forward and in backward, of the stage with an end of the model."""
    turn = r.virtual_stages - 1
    return is_last(r) * turn, is_first(r) * turn


class Device(NamedTuple):
    """The stages of a device: with an end of the model, and without.

    `gradients`: bytes of those of the parameters of each.
    """

    end: Stage
    end_gradients: Any
    plain: Stage
    plain_gradients: Any


def forward_backward(device: Device, r: Run, start):
    """Peak bytes of one step, where `start` bytes are live throughout."""
    one, end, plain = order(r), device.end, device.plain
    gradients = one.n_stage * device.plain_gradients + device.end_gradients - device.plain_gradients
    moments = _moments(one, r)
    levels = (
        (moments.forward, plain.forward),
        (moments.first, backward_levels(plain.backward, plain.n_layer, 0)),
        (moments.again, backward_levels(plain.again, plain.n_layer, 0)),
        (moments.end_forward, [*end.forward, *end.loss]),
        (moments.end_first, backward_levels(end.backward, end.n_layer, 0)),
        (moments.end_again, backward_levels(end.again, end.n_layer, 0)),
    )
    found = [
        is_there * (_live(device, one, r, number) + largest(*more))
        for numbers, more in levels
        if more
        for is_there, number in numbers
    ]
    # All logits are joined at the end of the step, when the losses are gone.
    joined = gradients + 2 * outputs(r, end.logits)
    return start + largest(*found, joined)


def _live(device: Device, one: Order, r: Run, number):
    """Bytes live before a backward pass, and after the forward pass before it."""
    end, plain = device.end, device.plain
    live = least(one.in_flight, one.n_pass - number) * plain.waiting
    live = live + least(one.n_stage, ceil_div(number, one.in_round)) * device.plain_gradients
    if not (is_first(r) or is_last(r)):
        return live
    forward, backward = _turns(r)
    finished = one.of_stage(backward, number)
    waiting = one.of_stage(forward, least(one.n_pass, one.ahead + 1 + number)) - finished
    begun = positive(number - backward * one.in_round)
    live = live + waiting * (end.waiting - plain.waiting) + finished * end.left
    return live + begun * (device.end_gradients - device.plain_gradients)


class Moments(NamedTuple):
    """Numbers of backward passes around which the peak may be, each after 1 if there is one, or 0.

    `forward`: of those whose forward pass before them may have the peak. `first` make gradients,
    `again` add to them. The others are of the stage with an end of the model.
    """

    forward: list
    first: list
    again: list
    end_forward: Sequence = ()
    end_first: Sequence = ()
    end_again: Sequence = ()


def _moments(one: Order, r: Run) -> Moments:
    last = one.n_stage - 1
    if is_first(r):
        return _of_first(one, *_of_turns(one, 0, last - 1))
    if is_last(r):
        return _of_last(one, *_of_turns(one, 1, last))
    return Moments([(1, one.last_forward)], *_of_turns(one, 0, last))


def _of_turns(one: Order, first, last) -> tuple[list, list]:
    """Return when stages between two turns make gradients, and when they add to them.

    From turn to turn, one stage's gradients are made, and what waits stays or becomes less by as
    much each time, from the second turn on: the peak is in one of these three.
    """
    turns = [turn * one.in_round for turn in (first, least(first + 1, last), last)]
    several = positive(one.in_round - 1)
    return [(1, number) for number in turns], [(several, number + 1) for number in turns]


def _of_first(one: Order, first: list, again: list) -> Moments:
    """Return the moments of the first device, whose stage with the embedding is last in backward.

    Most microbatches wait in that stage when its turn begins: in the first round, or in the last
    but one, with all gradients and no fewer forward passes to come.
    """
    size, several = one.in_round, positive(one.in_round - 1)
    begin = (one.n_stage - 1) * size
    latest = begin + largest(0, one.n_round - 2) * one.n_stage * size
    forward = [least(number, one.last_forward) for number in (begin, begin + 1, latest)]
    return Moments(
        [(1, number) for number in (*forward, one.last_forward)],
        first,
        [*again, (several, latest - 1), (positive(one.n_round - 1), begin + size)],
        end_first=[(1, begin)],
        end_again=[(several, begin + 1), (positive(one.n_round - 2), latest)],
    )


def _of_last(one: Order, first: list, again: list) -> Moments:
    """Return the moments of the last device, whose stage with the head is first in backward.

    Each of its backward passes follows its forward pass, and the last forward pass of all is one of
    them. The stage before has its last forward pass a turn earlier.
    """
    rounds, before = positive(one.n_round - 1), one.last_forward - one.in_round
    return Moments(
        [(rounds, before)],
        first,
        [*again, (rounds, before), (rounds, one.last_forward + 1)],
        end_forward=[(1, one.last_forward)],
        end_first=[(1, 0)],
        end_again=[(positive(one.last_forward), one.last_forward)],
    )
