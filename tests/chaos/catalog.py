"""Every fault, in the order in which they are shown."""

from __future__ import annotations

import control_plane_faults
import object_faults
import training_faults
import volume_faults
from fault import Fault

FAULTS: tuple[Fault, ...] = (
    *training_faults.FAULTS,
    *volume_faults.FAULTS,
    *control_plane_faults.FAULTS,
    *object_faults.FAULTS,
)
