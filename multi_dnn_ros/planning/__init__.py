"""Job plans, placement and fit from measured or predicted layer times."""
