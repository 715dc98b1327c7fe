"""Every fault, in the order in which they are shown."""

from __future__ import annotations

import training_faults
import volume_faults
from fault import Fault

FAULTS: tuple[Fault, ...] = (*training_faults.FAULTS, *volume_faults.FAULTS)
