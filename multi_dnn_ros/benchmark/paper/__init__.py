"""Experiments as in Kim, Kim and Kim (2022), and comparisons with what a user would write instead."""
