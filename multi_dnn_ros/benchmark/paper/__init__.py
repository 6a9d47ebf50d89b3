"""The experiments of Kim, Kim, Kim 2022, chapter 4, compared with the usual alternatives, and what came after it.

sets: which DNNs run concurrently, and how. dnns, loops: those of one process. measure: all conditions in
one run. branches: parallel branches of one network. important: an important DNN beside a background. peers,
shared_cameras, peer_comparison: beside a user's own processes.
"""
