"""Shared basics: errors, files, processes, reports. Imports no other package of multi_dnn_ros."""
