"""The command `gpuyard`: every verb is a thin door to the SDK. Data goes to stdout, talk to stderr."""

from gpuyard.cli.app import cli, main

__all__ = ["cli", "main"]
