"""Who is told what an engine computes at this moment, and that its device has failed."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Called in the engine's threads; must be quick and must not raise.

    For each DNN there may be more than one thing under way: `began` and `ended` are called equally often.
    """

    def began(self, dnn: str) -> None:
        """On a CPU a job of the DNN starts to run; on a GPU the first job of an inference is launched. And on both,
        its outputs begin to be decoded."""
        ...

    def ended(self, dnn: str) -> None:
        """The job has run; on a GPU the outputs of the inference have arrived, or it was lost. Outputs are decoded."""
        ...

    def device_failed(self, dnn: str, error: BaseException) -> None:
        """A job of the DNN, or its outputs, raised what :func:`is_device_failure` tells from all else.

        Called before `ended`. May not return: on a GPU nothing can be computed in this process any more.
        """
        ...


class NullObserver:
    """Nobody is told."""

    def began(self, dnn: str) -> None:
        pass

    def ended(self, dnn: str) -> None:
        pass

    def device_failed(self, dnn: str, error: BaseException) -> None:
        pass
