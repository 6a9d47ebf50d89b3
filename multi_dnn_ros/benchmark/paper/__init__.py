"""The experiments of Kim, Kim, Kim 2022, chapter 4, compared with the usual alternatives, and the branch table.

sets: which DNNs run concurrently, and how. prepare, loops, engine_loop: the DNNs of one process. process_group: the
processes of a condition. measure: all conditions in one run. branches, branch_networks: parallel branches of one
network. report: tables and figures.
"""
