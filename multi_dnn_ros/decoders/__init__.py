"""Decoders: raw outputs of a network to results in pixels of the source image."""
