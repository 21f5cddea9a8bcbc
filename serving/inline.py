"""Trajectories that run in the dispatcher's thread."""

from collections.abc import Callable, Generator
from typing import NamedTuple

import torch

from zeus_trt.runtime import Result
from zeus_trt.runtime.calls import Asked
from zeus_trt.serving.ticket import Ticket
from zeus_trt.serving.waiting_call import WaitingCall

Calls = Generator[Asked, torch.Tensor, Result]
Ending = Callable[[Ticket, Result | BaseException], None]


class Trajectory(NamedTuple):
    """A trajectory that runs in the dispatcher's thread: its calls, and what is called at its end."""

    ticket: Ticket
    calls: Calls
    end: Ending


def send(calls: Calls, call: WaitingCall) -> Asked:
    """A trajectory goes on with the answer of its call; returns its next call, or raises StopIteration."""
    try:
        output = call.read()
    except BaseException as error:
        return calls.throw(error)
    return calls.send(output)
