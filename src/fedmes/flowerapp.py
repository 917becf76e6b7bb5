"""A former place, which the app files of running federations still name (docs/deployment.md)."""

from fedmes.deployment.app import client, server

__all__ = ["client", "server"]
