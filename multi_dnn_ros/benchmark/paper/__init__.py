"""The experiments of Kim, Kim, Kim 2022, chapter 4, compared with the usual alternatives, and the branch table.

sets: which DNNs run concurrently. conditions: how they run. networks: the DNNs. partition: their share of a GPU.
prepare, loops: the DNNs of one process. process_group: the processes of a condition. measure: all conditions in one
run. branches: parallel branches of one network. report: tables and figures.
"""
