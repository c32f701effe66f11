"""Tracker to scheduler. Bound: live requests, each sends one Admit."""

from __future__ import annotations

import attrs

from triolet.request import GenerationRequest


@attrs.frozen
class Admit:
    """Schedule this request. Its `prefix` is the output so far when it is a resume."""

    request: GenerationRequest
