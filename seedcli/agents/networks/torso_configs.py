"""Configuration keys of the built-in torsos; `mlp` has those of `NetworkConfig` alone."""

from __future__ import annotations

from pydantic import Field

from seedcli.config.sections import NetworkConfig, PositiveInt


class ShallowConfig(NetworkConfig):
    """The shallow network of IMPALA."""

    @property
    def smallest_image(self) -> int:
        """One output of the last convolution."""
        return 20


class NatureConfig(NetworkConfig):
    """The network of Mnih et al. (Nature 2015)."""

    @property
    def smallest_image(self) -> int:
        """One output of the last convolution."""
        return 36


class DeepConfig(NetworkConfig):
    """The deep residual network of IMPALA."""

    channels: tuple[PositiveInt, ...] = Field((16, 32, 32), min_length=1, description="channels of each stage")

    @property
    def smallest_image(self) -> int:
        """Each stage halves an image."""
        return int(2 ** len(self.channels))
