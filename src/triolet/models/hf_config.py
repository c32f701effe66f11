"""Read a config.json, whichever major version of transformers wrote it.

Version 5 writes `rope_parameters` (one dict, or one per layer type) where version 4 wrote
`rope_theta`, `rope_scaling` and `partial_rotary_factor`. Fields that equal the default of
their class may be missing; a family knows these defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triolet.errors import ConfigError


class HFConfig:
    """Fields of a config.json with the defaults of its family."""

    def __init__(self, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._fields = {**defaults, **fields}

    def get(self, name: str) -> Any:  # noqa: ANN401  # JSON
        """The field; None if it is missing or null."""
        return self._fields.get(name)

    def size(self, name: str) -> int:
        """A field that must be a positive whole number.

        Raises:
            ConfigError: It is missing or something else.
        """
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            found = "is missing" if value is None else f"is {value!r}"
            raise ConfigError(
                f"config.json: {name} {found}; it must be a positive whole number", param="model"
            )
        return value

    def number(self, name: str) -> float:
        """A field that must be a number.

        Raises:
            ConfigError: It is missing or something else.
        """
        value = self._fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            found = "is missing" if value is None else f"is {value!r}"
            raise ConfigError(f"config.json: {name} {found}; it must be a number", param="model")
        return float(value)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return self.size("num_hidden_layers")

    @property
    def head_dim(self) -> int:
        """Dimensions of a head; by default the hidden size shared by the heads."""
        if self.get("head_dim") is not None:
            return self.size("head_dim")
        return self.size("hidden_size") // self.size("num_attention_heads")

    def layer_types(self) -> list[str] | None:
        """`layer_types`, checked; None if there is none.

        Raises:
            ConfigError: It has another length than there are layers.
        """
        types = self.get("layer_types")
        if types is None:
            return None
        if len(types) != self.num_layers:
            raise ConfigError(
                f"config.json: layer_types has {len(types)} entries for {self.num_layers} layers",
                param="model",
            )
        return [str(kind) for kind in types]

    @property
    def has_ropes_by_layer_type(self) -> bool:
        """Whether `rope_parameters` holds one dict per layer type."""
        stored: Mapping[str, Any] = self.get("rope_parameters") or {}
        return any(isinstance(value, Mapping) for value in stored.values())

    def rope_parameters(self, layer_type: str) -> dict[str, Any]:
        """Rotary parameters of a layer type, in the style of version 5.

        Args:
            layer_type: Such as "full_attention".

        Returns:
            With `rope_type` and `rope_theta`, and `original_max_position_embeddings` where
            the kind needs it.
        """
        stored: Mapping[str, Any] = self.get("rope_parameters") or self.get("rope_scaling") or {}
        if self.has_ropes_by_layer_type:
            stored = stored.get(layer_type) or {}
        parameters = {key: value for key, value in stored.items() if value is not None}
        parameters.setdefault("rope_type", parameters.pop("type", "default"))
        parameters.setdefault("rope_theta", self.get("rope_theta"))
        original = self.get("original_max_position_embeddings")
        if original is not None:  # phi3 keeps it outside, and there it counts
            parameters["original_max_position_embeddings"] = original
        else:
            parameters.setdefault(
                "original_max_position_embeddings", self.get("max_position_embeddings")
            )
        if self.get("partial_rotary_factor") is not None:
            parameters.setdefault("partial_rotary_factor", self.get("partial_rotary_factor"))
        return parameters
