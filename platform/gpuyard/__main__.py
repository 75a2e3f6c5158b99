"""`python -m gpuyard` is the command `gpuyard`."""

from gpuyard.cli import main

main()
