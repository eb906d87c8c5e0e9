"""From words to values: durations, moments, GPU ranges, sweeps, targets. Each error says what is
valid."""
