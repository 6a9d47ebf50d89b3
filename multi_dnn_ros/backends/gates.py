"""A gate: a word in memory of the host that a GPU reads before it goes on with a stream.

`cuStreamWaitValue32`, called during a capture, becomes a node of the graph. An open gate costs nothing that could be
measured; a closed one occupies no SM (H200, FACTS 16).
"""

from __future__ import annotations

import ctypes

import torch

from multi_dnn_ros.backends.cuda_driver import check, driver

#: CUstreamWaitValue_flags: wait until the word is equal to the value.
_EQUAL = 1
_OPEN, _CLOSED = 0, 1


class GateError(RuntimeError):
    """The driver cannot let a captured stream wait for a word in memory."""


class Gate:
    """The gate of one DNN. is_open: set by the host; the GPU sees it within microseconds."""

    def __init__(self) -> None:
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)  # page-locked: the GPU can read it
        self._value = self._word.numpy()

    @property
    def is_open(self) -> bool:
        return bool(self._value[0] == _OPEN)

    @is_open.setter
    def is_open(self, value: bool) -> None:
        self._value[0] = _OPEN if value else _CLOSED

    def wait(self) -> None:
        """Let the current stream wait here while the gate is closed, if it is being captured.

        Raises GateError if the driver cannot do that.
        """
        if not torch.cuda.is_current_stream_capturing():
            return
        stream = torch.cuda.current_stream()
        handle, address = ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(self._word.data_ptr())
        try:
            check(driver().cuStreamWaitValue32_v2(handle, address, ctypes.c_uint32(_OPEN), ctypes.c_uint(_EQUAL)))
        except (RuntimeError, AttributeError) as error:
            raise GateError(f"no gate in a CUDA graph: {error}") from error
