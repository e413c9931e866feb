"""Which positions the tokens of a sequence have."""

from dataclasses import dataclass

from enginebay_llamacpp.projector import Tile


@dataclass(frozen=True, slots=True)
class _Grid:
    """A picture with M-RoPE: tokens `start` to `end` - 1, all filed under `position`."""

    start: int
    end: int
    position: int
    next_position: int


class Positions:
    """Of the tokens in a slot; each has its own, except those of pictures with M-RoPE.

    llama.cpp files all of these under the first one's, and the next token goes on after the grid's
    longer side (Qwen2-VL, 2024).
    """

    def __init__(self) -> None:
        self._grids: list[_Grid] = []

    def of(self, token: int) -> int:
        """Where the token of this number is filed, or will be if it is the next."""
        for grid in reversed(self._grids):
            if token >= grid.end:
                return grid.next_position + token - grid.end
            if token >= grid.start:
                return grid.position
        return token

    def add(self, start: int, tile: Tile) -> None:
        """Tokens from `start` on stand for this tile."""
        if tile.shares_position and not any(grid.start == start for grid in self._grids):
            position = self.of(start)
            end = start + tile.tokens
            self._grids.append(_Grid(start, end, position, position + tile.positions))

    def copy(self, tokens: int) -> "Positions":
        """Of the first `tokens`."""
        copied = Positions()
        copied._grids = [grid for grid in self._grids if grid.start < tokens]
        return copied
