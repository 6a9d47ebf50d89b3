"""Layer times measured or predicted: job plans, device limits, fit."""
