"""From settings to what the engine runs: build, device choice, warm-up, capacity."""
