"""GPUAllocation: its schema, its rules, and a card as the API server has it."""
