"""`python -m gpuledger`."""

from gpuledger.command_line.program import main

main()
