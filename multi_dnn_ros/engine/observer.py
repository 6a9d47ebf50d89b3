"""The interface through which an engine reports which DNN it is computing, and failures of its device."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Called in the engine's threads; must be fast and must not raise.

    A DNN may have several operations in progress. `began` and `ended` are called equally often.
    """

    def began(self, dnn: str) -> None:
        """On a CPU, a job of the DNN starts; on a GPU, an inference is launched. On both, decoding of its outputs
        starts.
        """
        ...

    def ended(self, dnn: str) -> None:
        """On a CPU, the job is done; on a GPU, the outputs of the inference have arrived, or it is dropped. On both,
        decoding has ended.
        """
        ...

    def image_began(self) -> None:
        """Decoding of a JPEG file on a GPU starts; one at a time."""
        ...

    def image_ended(self) -> None:
        """Decoding of the JPEG file has ended."""
        ...

    def device_failed(self, dnn: str, error: BaseException) -> None:
        """A job of the DNN, its outputs or its image raised an error that :func:`is_device_failure` recognizes.

        Called before `ended`. Need not return: on a GPU nothing can be computed in this process any more.
        """
        ...


class NullObserver:
    """Ignores all calls."""

    def began(self, dnn: str) -> None:
        pass

    def ended(self, dnn: str) -> None:
        pass

    def image_began(self) -> None:
        pass

    def image_ended(self) -> None:
        pass

    def device_failed(self, dnn: str, error: BaseException) -> None:
        pass
