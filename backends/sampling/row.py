"""The type of what all of this works on."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = NDArray[np.float32]
"""The logits of one position, `[vocabulary]`."""
