"""Fake units, known to every test of this folder."""

from __future__ import annotations

from partition_fakes import KIND

from multi_dnn_ros.planning import batch_units

batch_units.register(KIND)
