"""Objects in the places of a pipeline's modules, schedulers and callbacks, which a run hears of."""

import copy
import functools
from collections.abc import Callable
from typing import Any

MARK = "_is_accelerated"

Reply = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Is given a scheduler, its own method, and the arguments of a call; answers the call."""


class CountedMethod:
    """A scheduler's method that a run hears of. A deep copy of the scheduler has a counted method too.

    Args:
        scheduler: The scheduler.
        name: Name of the method.
        reply: Answers each call.
    """

    _is_accelerated = True

    def __init__(self, scheduler: Any, name: str, reply: Reply):
        self._scheduler, self._name, self._reply = scheduler, name, reply
        functools.update_wrapper(self, _bind(scheduler, name))  # pipelines read signatures

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._reply(self._scheduler, _bind(self._scheduler, self._name), args, kwargs)

    def belongs_to(self, reply: Reply) -> bool:
        """Whether it answers by these means."""
        return self._reply == reply

    def __deepcopy__(self, memo: dict[int, Any]) -> "CountedMethod":
        copied = memo.get(id(self._scheduler))
        if copied is None:  # its attributes are copied alone, to be given back to it
            return self
        return CountedMethod(copied, self._name, self._reply)

    def __reduce__(self) -> Any:
        return _bind, (self._scheduler, self._name)  # in another process it is a plain scheduler


def _bind(scheduler: Any, name: str) -> Any:
    return getattr(type(scheduler), name).__get__(scheduler)


def count(scheduler: Any, **replies: Reply) -> Any:
    """A copy of a scheduler, of the same class, that answers the named methods with these functions."""
    counted = copy.deepcopy(scheduler)
    vars(counted).update({name: CountedMethod(counted, name, reply) for name, reply in replies.items()})
    return counted


def is_scheduler(thing: Any) -> bool:
    """Whether it sets timesteps and takes steps."""
    return not isinstance(thing, type) and all(
        callable(getattr(thing, name, None)) for name in ("step", "set_timesteps")
    )


def is_stand_in(thing: Any) -> bool:
    """Whether it is part of an accelerated pipeline, or the pipeline."""
    return hasattr(thing, MARK) or (is_scheduler(thing) and hasattr(thing.step, MARK))


def imitate(thing: Any, call: Callable[..., Any]) -> Any:
    """An object that shares all attributes of ``thing``, and is called as ``call``; a copy of it is a plain copy."""

    def reduce(_: Any, protocol: Any) -> Any:
        return _rebuild, (type(thing), dict(vars(thing)))

    stand_in: Any = object.__new__(
        subclass(type(thing), __call__=lambda _, *args, **kwargs: call(*args, **kwargs), __reduce_ex__=reduce)
    )
    object.__setattr__(stand_in, "__dict__", vars(thing))
    return stand_in


def _rebuild(base: type, attributes: dict[str, Any]) -> Any:
    thing: Any = object.__new__(base)
    vars(thing).update(attributes)
    return thing


def subclass(base: type, **methods: Any) -> type:
    """A class equal to ``base``, so that ``type(x) == base`` and ``type(x) in classes`` hold, with other methods."""
    same: Any = {
        "__eq__": lambda cls, other: other is base or type.__eq__(cls, other) is True,
        "__hash__": lambda cls: hash(base),
    }
    metaclass = type(type(base).__name__, (type(base),), same)
    named = {"__module__": base.__module__, "__qualname__": base.__qualname__, MARK: True}
    return metaclass(base.__name__, (base,), {**methods, **named})
