"""Profiles distributed training layer by layer, after Kim, Library-level Distributed Processing Method for CNN Training
Using GPU Clusters (Seoul National University, 2020).
"""
