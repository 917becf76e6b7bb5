"""Fixtures of the tests of downloads."""

from helpers.file_server import cifar, server  # noqa: F401
