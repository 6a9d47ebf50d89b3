"""The experiments of Kim, Kim, Kim 2022, chapter 4, compared with the usual alternatives.

sets: which DNNs run at once. conditions: how they run. networks: the DNNs themselves. partition: their share of a GPU.
loops, shared_queue: the closed loops inside a process. group: the processes of a condition. measure: all conditions in
one run. statistics, report, plot: what is made of it. deadlines: three cameras against the scheduling policies.
"""
