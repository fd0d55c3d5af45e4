"""A network as sealed training sees it: a circuit, what its layers hold in a round, and the way back to parameters."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bilateral.errors import ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.share.circuit.description import ChannelDropout, Circuit, Dropout
from bilateral.protocols.share.circuit.trainable import TrainableModel, compile_trainable
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.protocols.share.training.sizing import sized
from bilateral.protocols.share.training.terms import StepTerms


@dataclass(frozen=True, eq=False, repr=False)
class SealedNetwork:
    """One architecture, the same in every process. What it holds of parameters is overwritten by whoever asks."""

    graph: ScaleGraph
    trainable: TrainableModel

    @classmethod
    def of(cls, model: nn.Module, graph: ScaleGraph, input_shape: tuple[int, ...]) -> SealedNetwork:
        """`UnsupportedLayerError` names what cannot be trained so."""
        return cls(graph, compile_trainable(copy.deepcopy(model), input_shape))

    def __deepcopy__(self, memo: dict[int, object]) -> SealedNetwork:
        """Itself: its layers are functions of its own module, and what that holds is overwritten by whoever asks."""
        return self

    @property
    def circuit(self) -> Circuit:
        return self.trainable.circuit

    @property
    def trains(self) -> tuple[tuple[bool, bool], ...]:
        return self.trainable.trains

    @property
    def drops(self) -> bool:
        """Whether it draws another network in each step."""
        return any(isinstance(step, Dropout | ChannelDropout) for step in self.circuit.steps)

    def front_state(self, model: nn.Module) -> tuple[Tensor, ...]:
        """What the public front holds: everybody gets it."""
        if self.trainable.front is None:
            return ()
        found = dict(model.named_parameters()) | dict(model.named_buffers())
        return tuple(found[name].detach().clone() for name in self._front_names)

    def through_front(self, state: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """What enters the circuit, computed in the clear by whoever has the inputs. `state`: from the server."""
        own = self._front_state
        if [(part.shape, part.dtype) for part in state] != [(part.shape, part.dtype) for part in own]:
            raise ProtocolError(
                f"The server sent {len(state)} arrays for the public front of the network, which has {len(own)} of "
                "other shapes.",
                remedy="Both sides must run the same plan.",
            )
        front = self.trainable.front
        if front is None:
            return inputs
        with torch.no_grad():
            for mine, sent in zip(own, state, strict=True):
                mine.copy_(sent)
            found: Tensor = front(inputs.to(self._front_dtype))
        return found

    def first_model(self, model: nn.Module, terms: StepTerms) -> FirstModel:
        """What the server has in the clear in a round, without limits (`with_limits`)."""
        return FirstModel.of(terms, self.trainable.encode(model), {})

    def with_limits(self, first: FirstModel, terms: StepTerms, through: Tensor, num_clients: int) -> FirstModel:
        """Limits that follow from what the server's own examples (behind the front) show, for steps of these terms."""
        return sized(terms, first, first.layers, through, num_clients)

    def gradient(self, model: nn.Module, terms: StepTerms, words: Tensor) -> Tensor:
        """Of all parameters, flat (float64), from the words of both parties; zeros where nothing trains."""
        named = self.trainable.gradients(model, terms.decode(words))
        return self.graph.flatten(
            {
                name: named[name] if name in named else torch.zeros(parameter.shape, dtype=torch.float64)
                for name, parameter in model.named_parameters()
            },
            torch.float64,
        )

    @cached_property
    def _front_names(self) -> tuple[str, ...]:
        front = self.trainable.front
        return () if front is None else tuple(dict(front.named_parameters()) | dict(front.named_buffers()))

    @cached_property
    def _front_state(self) -> tuple[Tensor, ...]:
        front = self.trainable.front
        if front is None:
            return ()
        found = dict(front.named_parameters()) | dict(front.named_buffers())
        return tuple(found[name] for name in self._front_names)

    @cached_property
    def _front_dtype(self) -> torch.dtype:
        return next((part.dtype for part in self._front_state if part.is_floating_point()), torch.float32)


def without_dropout(model: nn.Module) -> nn.Module:
    """A copy whose dropout layers drop nothing."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return copied
