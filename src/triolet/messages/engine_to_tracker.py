"""Engine to tracker. Bound: admission; this is the only channel whose sender may wait."""

from __future__ import annotations

import attrs

from triolet.request import GenerationRequest


@attrs.frozen
class Submit:
    """Admit this request; its credit is already reserved."""

    request: GenerationRequest
