"""All observers of a loop, in the order in which they are told."""

from typing import Tuple, Type

from .gradients.carried_gradient import CarriedGradient
from .gradients.gradient_hook import GradientHook
from .gradients.step_between import StepBetween
from .gradients.two_passes import TwoPasses
from .loops.epoch_start import EpochStart
from .loops.own_break import OwnBreak
from .loops.own_epochs import OwnEpochs
from .loops.own_next import OwnNext
from .loops.part_error import PartError
from .observer import Observer
from .settings.batch_norm import BatchNorm
from .settings.comm_hook import CommHook
from .settings.late_group import LateGroup
from .settings.outside_parameters import OutsideParameters
from .settings.own_freezing import OwnFreezing
from .settings.own_rate import OwnRate
from .state.moving_buffer import MovingBuffer
from .state.replicas_apart import ReplicasApart
from .state.state_in_pieces import StateInPieces
from .state.unregistered_state import UnregisteredState
from .steps.closure import Closure
from .steps.hand_gradient import HandGradient
from .steps.missing_step import MissingStep
from .steps.other_optimizer import OtherOptimizer
from .steps.own_loader import OwnLoader
from .steps.step_value import StepValue
from .steps.uneven_steps import UnevenSteps

# Of a loop over job.loader().
OBSERVERS: Tuple[Type[Observer], ...] = (
    Closure, StepValue, HandGradient, OwnLoader, OtherOptimizer, UnevenSteps, MissingStep,
    TwoPasses, CarriedGradient, StepBetween, GradientHook,
    OwnFreezing, OwnRate, LateGroup, CommHook, BatchNorm,
    OwnNext, OwnEpochs, OwnBreak, EpochStart, PartError,
    UnregisteredState, StateInPieces, MovingBuffer, ReplicasApart,
)  # fmt: skip
# Of a loop with batches of its own, whose gradients and steps are the script's.
OF_OTHER_LOOPS: Tuple[Type[Observer], ...] = (OutsideParameters,)
