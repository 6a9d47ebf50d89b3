"""The experiments of Kim, Kim, Kim 2022, chapter 4, compared with the usual alternatives.

sets: which DNNs run concurrently. conditions: how they run. networks: the DNNs. partition: their share of a GPU.
prepare: prepares the DNNs of a condition. loops, shared_queue: the closed loops inside a process. process_group: the
processes of a condition. measure: all conditions in one run. statistics, report, plot: evaluation. time_bound: lower
bounds. deadlines: three cameras, compared by scheduling policy. important: one important DNN among others.
"""
