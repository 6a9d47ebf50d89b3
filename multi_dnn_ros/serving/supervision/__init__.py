"""Supervises the engine processes of one device: detects hangs, replaces lost processes, finds the DNN at fault.

This package only makes decisions and starts no process, so that every order of events can be tested.
:class:`multi_dnn_ros.serving.supervised_processes.SupervisedProcesses` passes events to
:class:`multi_dnn_ros.serving.supervision.supervisor.Supervisor` and executes the actions that it returns.

========================  ================================================================================
``states``                the state of each process and of each group of DNNs
``actions``               the actions that the supervisor decides on
``process_table``         all processes, groups and routes; the operations that the following modules share
``standby``               the process that is prepared to replace a lost one
``merging``               moving DNNs from processes of their own back into a common one
``swapping``              replacing the process of a group by one with other settings, while it serves
``recovery``              what follows from a loss: restart, isolation or disabling; restoring a group
``supervisor``            the events
``hang_detector``         finds processes that hang
========================  ================================================================================
"""
