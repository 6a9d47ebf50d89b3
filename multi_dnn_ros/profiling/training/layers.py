"""The layers of a network in training: which of them is computing, in the forward and in the backward pass.

A layer is a module. What a module computes between the calls of its submodules counts as its own work. In the backward
pass an autograd node belongs to the module in whose forward pass it was created, which its sequence number tells.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from multi_dnn_ros.models.errors import ModelError

#: reduce: the backward pass launches a reduction. wait: the step waits for the end of a reduction.
Phase = Literal["forward", "backward", "reduce", "wait", "optimizer"]
#: Called when another layer or phase begins. None: bookkeeping of the profiler.
Switch = Callable[[int, Phase | None], None]


class Layers:
    """The modules of a network, numbered in the order of `named_modules`; the last number is the loss.

    names: qualified; "(network)" is the network itself. kinds: class names. parameters: the trained parameters of each
    layer without its submodules; a parameter that several modules share belongs to the first of them.
    """

    def __init__(self, network: nn.Module) -> None:
        self._modules = list(dict(network.named_modules()).values())
        self.names = (*(name or "(network)" for name, _ in network.named_modules()), "(loss)")
        self.kinds = (*(type(module).__name__ for module in self._modules), "")
        self.loss = len(self._modules)
        self.parameters: list[list[nn.Parameter]] = []
        self._owner: dict[int, int] = {}
        for number, module in enumerate((*self._modules, nn.Identity())):
            trained = [
                parameter
                for parameter in module.parameters(recurse=False)
                if parameter.requires_grad and id(parameter) not in self._owner
            ]
            self._owner.update((id(parameter), number) for parameter in trained)
            self.parameters.append(trained)

    def __len__(self) -> int:
        return len(self.names)

    def owner(self, parameter: Tensor) -> int:
        """The layer of a trained parameter."""
        return self._owner[id(parameter)]

    def gradient_bytes(self, layer: int) -> int:
        """Size of the gradients of a layer."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters[layer])

    @contextmanager
    def followed(self, switch: Switch) -> Iterator[Callable[[Tensor], None]]:
        """Context that calls `switch` in forward and backward passes.

        It yields a function to call with the loss after each forward pass, which prepares the backward pass. Any number
        of passes may run inside.
        """
        followed = _Followed(self, switch)
        handles = []
        for number, module in enumerate(self._modules):
            handles.append(module.register_forward_pre_hook(followed.enter(number)))
            handles.append(module.register_forward_hook(followed.leave(number)))
        try:
            yield followed.add_backward
        finally:
            for handle in (*handles, *followed.handles):
                handle.remove()


class _Followed:
    def __init__(self, layers: Layers, switch: Switch) -> None:
        self._layers = layers
        self._switch = switch
        self._stack: list[int] = []
        self._begins: list[tuple[int, int]] = []  # (first sequence number, layer)
        self.handles: list[Any] = []

    def enter(self, number: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            if not self._stack:
                self._begins.clear()
            self._stack.append(number)
            self._begin(number)

        return hook

    def leave(self, number: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._stack.pop()
            self._begin(self._stack[-1] if self._stack else self._layers.loss)

        return hook

    def _begin(self, layer: int) -> None:
        self._begins.append((torch._C._autograd._get_sequence_nr(), layer))
        self._switch(layer, "forward")

    def add_backward(self, loss: Tensor) -> None:
        self._switch(self._layers.loss, None)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        firsts = [first for first, _ in self._begins]
        waiting, seen = [loss.grad_fn], {loss.grad_fn}
        while waiting:
            node: Any = waiting.pop()
            if node is None:
                continue
            layer = self._layer_of(node, firsts)
            if layer is not None:
                self.handles.append(node.register_prehook(self._hook(layer)))
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        self._switch(self._layers.loss, "backward")

    def _layer_of(self, node: Any, firsts: Sequence[int]) -> int | None:
        parameter = getattr(node, "variable", None)
        if parameter is not None:  # accumulates a gradient; has no sequence number of its own
            return self._layers._owner.get(id(parameter))
        count = bisect_right(firsts, node._sequence_nr())
        return self._begins[count - 1][1] if count else self._layers.loss

    def _hook(self, layer: int) -> Callable[[Any], None]:
        def hook(gradients: Any) -> None:
            self._switch(layer, "backward")

        return hook


def check_trainable(name: str, network: nn.Module, step: Callable[[], Tensor]) -> list[str]:
    """Stop training parameters that get no gradient, and return their names.

    step: runs a forward pass and returns the loss. Raises ModelError, which names the network, if it cannot be trained.
    """
    trained = {key: parameter for key, parameter in network.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ModelError(f"{name} cannot be trained: it has no floating-point parameters")
    try:
        loss = step()
        if loss.grad_fn is None:
            raise ModelError(f"{name} cannot be trained: its outputs do not depend on its parameters")
        loss.backward()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        from multi_dnn_ros.backends.device_errors import is_out_of_memory
        from multi_dnn_ros.common.error_text import summarize_error

        if isinstance(error, ModelError):
            raise
        if is_out_of_memory(error):
            raise ModelError(f"{name} does not fit: {summarize_error(error)}; choose a smaller --batch") from None
        raise ModelError(f"{name} cannot be trained: {summarize_error(error)}") from error
    unused = [key for key, parameter in trained.items() if parameter.grad is None]
    for key in unused:
        trained[key].requires_grad_(False)
    for parameter in trained.values():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ModelError(f"{name} cannot be profiled: its sparse gradients cannot be reduced layer by layer")
        parameter.grad = None
    return unused
