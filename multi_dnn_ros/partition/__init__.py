"""One batch on several units at once: measured, planned and run, each unit in a process of its own.

The method is that of Lee, Choi and Park, "Performance-based batch partitioning for efficient inference on heterogeneous
systems" (KCC 2020).
"""
