"""Builds from the settings what the engine runs: device choice, checks, jobs, fit."""
