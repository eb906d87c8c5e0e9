"""Turns styles of rich into attributes of curses, with the colours of the terminal."""

from __future__ import annotations

import curses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.style import Style

MOST_PAIRS = 256
OWN_COLOURS = (-1, -1)  # default colour on default background


class Palette:
    """The palette of an open screen. Without colours, the rest of a style stays."""

    def __init__(self, *, colour: bool) -> None:
        self._attributes: dict[Style, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._colour = colour and curses.has_colors()
        if self._colour:
            curses.start_color()
            curses.use_default_colors()

    def attribute(self, style: Style | None) -> int:
        if style is None:
            return curses.A_NORMAL
        if style not in self._attributes:
            self._attributes[style] = self._find_attribute(style)
        return self._attributes[style]

    def _find_attribute(self, style: Style) -> int:
        attributes = curses.A_NORMAL
        for is_set, attribute in (
            (style.bold, curses.A_BOLD),
            (style.dim, curses.A_DIM),
            (style.reverse, curses.A_REVERSE),
            (style.underline, curses.A_UNDERLINE),
        ):
            if is_set:
                attributes |= attribute
        if self._colour:
            pair = (_number(style.color), _number(style.bgcolor))
            if pair != OWN_COLOURS:
                attributes |= self._pair(pair)
        return attributes

    def _pair(self, pair: tuple[int, int]) -> int:
        """A pair of colours for curses, or the default colours if curses has no more pairs."""
        if pair not in self._pairs:
            number = len(self._pairs) + 1
            if number >= min(curses.COLOR_PAIRS, MOST_PAIRS):
                return curses.A_NORMAL
            foreground, background = map(_nearest, pair)
            curses.init_pair(number, foreground, background)
            self._pairs[pair] = number
        return curses.color_pair(self._pairs[pair])


def _nearest(colour: int) -> int:
    """The plain colour for a bright one, if the terminal has only eight."""
    return colour if colour < curses.COLORS else colour % 8


def _number(colour: Any) -> int:
    """The number of the colour among sixteen. -1: the default colour."""
    from rich.color import ColorSystem

    if colour is None:
        return -1
    number = colour.downgrade(ColorSystem.STANDARD).number
    return -1 if number is None else int(number)
