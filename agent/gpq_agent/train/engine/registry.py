"""All observers of a loop, in the order of their calls."""

from typing import Tuple, Type

from gpq_agent.train.habits.gradients.gradient_hook import GradientHook
from gpq_agent.train.habits.gradients.step_between import StepBetween
from gpq_agent.train.habits.gradients.two_passes import TwoPasses
from gpq_agent.train.habits.loops.own_break import OwnBreak
from gpq_agent.train.habits.loops.own_epochs import OwnEpochs
from gpq_agent.train.habits.loops.own_next import OwnNext
from gpq_agent.train.habits.loops.part_error import PartError
from gpq_agent.train.habits.observer import Observer
from gpq_agent.train.habits.settings.batch_norm import BatchNorm
from gpq_agent.train.habits.settings.comm_hook import CommHook
from gpq_agent.train.habits.settings.late_group import LateGroup
from gpq_agent.train.habits.settings.outside_parameters import OutsideParameters
from gpq_agent.train.habits.settings.own_freezing import OwnFreezing
from gpq_agent.train.habits.settings.own_rate import OwnRate
from gpq_agent.train.habits.state.forgotten_scheduler import ForgottenScheduler
from gpq_agent.train.habits.state.moving_buffer import MovingBuffer
from gpq_agent.train.habits.state.state_in_pieces import StateInPieces
from gpq_agent.train.habits.steps.closure import Closure
from gpq_agent.train.habits.steps.hand_gradient import HandGradient
from gpq_agent.train.habits.steps.missing_step import MissingStep
from gpq_agent.train.habits.steps.other_optimizer import OtherOptimizer
from gpq_agent.train.habits.steps.step_value import StepValue
from gpq_agent.train.habits.steps.uneven_steps import UnevenSteps

# For a loop over job.loader().
OBSERVERS: Tuple[Type[Observer], ...] = (
    Closure, StepValue, HandGradient, OtherOptimizer, UnevenSteps, MissingStep,
    TwoPasses, StepBetween, GradientHook,
    OwnFreezing, OwnRate, LateGroup, CommHook, BatchNorm,
    OwnNext, OwnEpochs, OwnBreak, PartError,
    ForgottenScheduler, StateInPieces, MovingBuffer,
)  # fmt: skip
# For a loop that draws its own batches, with gradients and steps of the script.
OF_OTHER_LOOPS: Tuple[Type[Observer], ...] = (OutsideParameters,)
