"""Which rows go into the next call, by a clock that the tests set."""

import random

import pytest
import torch

from zeus_trt.serving.call_queue import CallQueue
from zeus_trt.serving.waiting_call import Caller, WaitingCall

A, B = ("F", "a"), ("F", "b")


def arrive(queue, rows=1, key=A, at=0.0, due=60.0, most=4, caller=None):
    call = WaitingCall(caller or Caller(), key, {"sample": torch.zeros(rows, 1)}, ("sample",), at, due)
    queue.add(call, most)
    return call


def show(parts):
    return [(part.call, part.start, part.stop) for part in parts]


def test_a_full_batch_waits_for_nobody():
    queue = CallQueue(max_wait=1.0)
    queue.expect(Caller(), None, 0.0)
    calls = [arrive(queue) for _ in range(3)]
    assert queue.take(0.0) == []
    calls.append(arrive(queue))
    assert show(queue.take(0.0)) == [(call, 0, 1) for call in calls]
    assert len(queue) == 0
    assert queue.next_change() is None


def test_a_batch_with_room_waits_only_while_somebody_is_expected():
    queue = CallQueue(max_wait=1.0)
    one, other = Caller(), Caller()
    queue.expect(one, A, 0.0)
    queue.expect(other, None, 0.0)
    call = arrive(queue)
    assert not queue.take(0.5)
    queue.forget(other)
    assert not queue.take(0.5)
    second = arrive(queue, caller=one)
    assert show(queue.take(0.5)) == [(call, 0, 1), (second, 0, 1)]


def test_nobody_is_waited_for_longer_than_max_wait():
    queue = CallQueue(max_wait=1.0)
    late = Caller()
    call = arrive(queue, at=0.5)
    assert queue.next_change() == 1.5
    queue.expect(late, A, 0.0)
    assert queue.next_change() == 1.0
    assert not queue.take(0.99)
    assert show(queue.take(1.0)) == [(call, 0, 1)]  # it is not expected any more
    call = arrive(queue, at=2.0)
    queue.expect(late, A, 2.5)
    assert queue.next_change() == 3.0
    assert not queue.take(2.99)
    assert show(queue.take(3.0)) == [(call, 0, 1)]  # it has waited for long enough


def test_the_time_of_an_answer_is_no_waiting():
    """Whoever waited while the engine ran meets those who had the answer: else both would take turns for ever."""
    queue = CallQueue(max_wait=1.0)
    answered = Caller()
    waits = arrive(queue, at=0.0)
    queue.free(5.0)
    queue.expect(answered, A, 5.0)
    assert not queue.take(5.5)
    joins = arrive(queue, at=5.9, caller=answered)
    assert show(queue.take(5.9)) == [(waits, 0, 1), (joins, 0, 1)]
    waits = arrive(queue, at=6.0)
    queue.free(10.0)
    queue.expect(answered, A, 10.0)
    queue.expect(Caller(), None, 10.9)
    assert queue.next_change() == 11.0
    assert show(queue.take(11.0)) == [(waits, 0, 1)]


def test_who_called_with_another_key_is_not_waited_for():
    queue = CallQueue(max_wait=1.0)
    queue.expect(Caller(), B, 0.0)
    call = arrive(queue)
    assert show(queue.take(0.0)) == [(call, 0, 1)]


def test_without_max_wait_what_is_there_goes():
    queue = CallQueue(max_wait=0.0)
    queue.expect(Caller(), None, 0.0)
    call = arrive(queue)
    assert show(queue.take(0.0)) == [(call, 0, 1)]


def test_the_one_that_is_due_first_goes_first_and_fills_up_with_rows_of_the_next():
    queue = CallQueue(max_wait=1.0)
    last, middle, first = arrive(queue, 3, due=60.0), arrive(queue, 3, due=50.0), arrive(queue, 2, due=1.0)
    assert show(queue.take(0.0)) == [(first, 0, 2), (middle, 0, 2)]
    assert show(queue.take(0.0)) == [(middle, 2, 3), (last, 0, 3)]
    assert not queue.take(0.0)


def test_more_rows_than_a_batch_has_are_taken_in_turns():
    queue = CallQueue(max_wait=1.0)
    call = arrive(queue, 9)
    assert [show(queue.take(0.0)) for _ in range(3)] == [[(call, 0, 4)], [(call, 4, 8)], [(call, 8, 9)]]


def test_keys_take_turns_whatever_their_number_of_rows():
    queue = CallQueue(max_wait=1.0)
    many = [arrive(queue, at=0.0) for _ in range(40)]
    one = arrive(queue, key=B, at=0.1, due=99.0)
    order = [queue.take(0.1)[0].call for _ in range(3)]
    assert order == [many[0], one, many[4]]


def test_a_call_of_another_key_than_expected_frees_those_who_waited_for_it():
    queue = CallQueue(max_wait=1.0)
    one, other = Caller(), Caller()
    queue.expect(one, A, 0.0)
    queue.expect(other, B, 0.0)
    waits = arrive(queue, key=A)
    arrive(queue, key=B)
    assert not queue.take(0.0)
    assert queue.add(WaitingCall(one, B, {"sample": torch.zeros(1, 1)}, ("sample",), 0.0, 60.0), 4)
    assert show(queue.take(0.0)) == [(waits, 0, 1)]
    assert not queue.take(0.0)


def test_a_batch_that_waits_holds_up_no_other_key():
    queue = CallQueue(max_wait=1.0)
    queue.expect(Caller(), A, 0.0)
    arrive(queue)
    other = arrive(queue, key=B)
    assert show(queue.take(0.0)) == [(other, 0, 1)]
    assert not queue.take(0.0)


@pytest.mark.parametrize("taken", [0, 4])
def test_calls_of_who_left_are_dropped(taken):
    queue = CallQueue(max_wait=1.0)
    gone = arrive(queue, 6, due=1.0)
    if taken:
        queue.take(0.0)
    stays = arrive(queue)
    assert queue.forget(gone.caller) == [gone]
    assert show(queue.take(0.0)) == [(stays, 0, 1)]
    assert len(queue) == 0


def test_it_keeps_nothing_of_what_is_done():
    queue = CallQueue(max_wait=1.0)
    for number in range(100):
        caller = Caller()
        queue.expect(caller, None, number)
        arrive(queue, key=("F", number), at=number, caller=caller)
        assert queue.take(number)
        queue.expect(caller, ("F", number), number)
    queue.take(1000.0)
    assert not any(vars(queue)[name] for name in ("_groups", "_most", "_expected"))


def make_caller(calls_left, has_deadline=False):
    caller = type("Dated", (Caller,), {"has_deadline": has_deadline})()
    caller.calls_left = calls_left
    return caller


@pytest.mark.parametrize("seed", range(30))
def test_a_set_of_requests_makes_as_few_calls_as_any_order_can(seed):
    """As many as the rows by the capacity, or as the longest request; who is due first has a part in each."""
    dice = random.Random(seed)
    most = dice.choice((1, 4, 8))
    waiting = {make_caller(dice.choice((22, 24, 27, 50))): float(number) for number in range(dice.randint(1, 32))}
    least = max(-(-sum(caller.calls_left for caller in waiting) // most), max(one.calls_left for one in waiting))
    queue, calls = CallQueue(max_wait=1.0), 0
    for caller, due in waiting.items():
        arrive(queue, caller=caller, due=due, most=most)
    while waiting:
        parts = queue.take(0.0)
        assert min(waiting.values()) in [part.call.due for part in parts]
        calls += 1
        for part in parts:
            caller = part.call.caller
            caller.calls_left -= 1
            due = waiting.pop(caller)
            if caller.calls_left:
                waiting[caller] = due
                arrive(queue, caller=caller, due=due, most=most)
    assert calls == least


def test_a_critical_call_goes_before_older_ones_but_not_before_deadlines():
    queue = CallQueue(max_wait=1.0)
    first, dated = arrive(queue, due=1.0, most=3), arrive(queue, due=2.0, most=3, caller=make_caller(1, True))
    older, long = arrive(queue, due=3.0, most=3), arrive(queue, due=4.0, most=3, caller=make_caller(9))
    late = arrive(queue, due=5.0, most=3, caller=make_caller(1, True))
    assert [part.call for part in queue.take(0.0)] == [long, first, dated]
    assert [part.call for part in queue.take(0.0)] == [older, late]
    queue = CallQueue(max_wait=1.0)
    older, dated = arrive(queue, due=3.0, most=2), arrive(queue, due=2.0, most=2, caller=make_caller(1, True))
    long = arrive(queue, due=4.0, most=2, caller=make_caller(9))
    assert [part.call for part in queue.take(0.0)] == [dated, long]
    assert [part.call for part in queue.take(0.0)] == [older]


def test_rows_of_guided_requests_count_twice():
    queue = CallQueue(max_wait=1.0)
    guided = [arrive(queue, 2, due=number, caller=make_caller(5)) for number in range(3)]
    alone = arrive(queue, due=9.0, caller=make_caller(7))
    assert [part.call for part in queue.take(0.0)] == guided[:2]  # 37 rows are 10 calls
    queue.forget(guided[2].caller)
    assert [part.call for part in queue.take(0.0)] == [alone]
