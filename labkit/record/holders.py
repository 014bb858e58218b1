"""What storages hold, learned from those who know: modules, autograd, optimizers.

parameters    registered with a module, or of a module that runs
buffers       likewise
gradients     in `.grad` when autograd has accumulated into it
optimizer     in an optimizer's state after its step
activations   kept by autograd for the backward pass
scratch       everything else
"""

# torch has no public name for a parameter's table of hooks.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers  # type: ignore[attr-defined]

from labkit.record.costs import tensors
from labkit.record.storages import Storages


class Holders:
    """Shows one rank's storages while it is entered.

    The hooks are the process's; `is_own` says whether the calling thread is the rank's.
    """

    def __init__(self, storages: Storages, is_own: Callable[[], bool]) -> None:
        self._storages = storages
        self._is_own = is_own
        self._handles: list[Any] = []

    @contextmanager
    def entered(self) -> Generator[None]:
        """Put the hooks in place, and take them away."""
        keep = torch.autograd.graph.saved_tensors_hooks(self._saved, lambda kept: kept)
        self._handles = [
            modules.register_module_parameter_registration_hook(self._registered),
            modules.register_module_buffer_registration_hook(self._registered),
            modules.register_module_forward_pre_hook(self._about_to_run),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        with ExitStack() as stack:
            stack.callback(self._remove_hooks)
            stack.enter_context(keep)
            yield

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _registered(self, owner: nn.Module, name: str, value: Tensor | None) -> None:
        if value is not None and self._is_own():
            self._show(value)

    def _about_to_run(self, owner: nn.Module, inputs: Any) -> None:
        if self._is_own():
            for value in (*owner.parameters(recurse=False), *owner.buffers(False)):
                self._show(value)
                if isinstance(value, nn.Parameter) and value.requires_grad:
                    self._listen(value)

    def _show(self, value: Tensor) -> None:
        is_parameter = isinstance(value, nn.Parameter)
        self._storages.show(value, "parameters" if is_parameter else "buffers")

    def _listen(self, parameter: Tensor) -> None:
        """Hear of its gradient.

        Not before the module runs: a hook does not survive `module.to(...)` on fake
        tensors, and hides those that come after. The parameter's own table of hooks
        tells whether it has ours: a weak reference to it would forbid `to` altogether.
        """
        hooks: Any = parameter._post_accumulate_grad_hooks
        if self._accumulated not in (hooks or {}).values():
            hook = parameter.register_post_accumulate_grad_hook(self._accumulated)
            self._handles.append(hook)

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None and self._is_own():
            self._storages.show(parameter.grad, "gradients")

    def _saved(self, tensor: Tensor) -> Tensor:
        """Autograd keeps a tensor; what holds a parameter already stays one."""
        self._storages.show(tensor, "activations")
        return tensor.detach()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_own():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._storages.show(parameter, "parameters")
                    self._accumulated(parameter)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_own():
            for tensor in tensors(tuple(optimizer.state.values())):
                self._storages.show(tensor, "optimizer")
