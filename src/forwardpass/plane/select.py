"""Knows where to ask which plane the settings choose: the rule stands with the variables that it reads."""

from __future__ import annotations

from forwardpass.config.plane_choice import PlaneChoice, chosen_plane, plane_url

__all__ = ["PlaneChoice", "chosen_plane", "plane_url"]
