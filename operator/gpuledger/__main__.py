"""`python -m gpuledger`."""

from gpuledger.command_line import main

main()
