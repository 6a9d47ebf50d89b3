"""Serves the DNNs of the node with supervised engines, in processes of their own or in the node's process.

In the node's process :mod:`camera_decoder` decodes images into :mod:`shared_memory`, :mod:`ledger` keeps the account of
every frame, and :mod:`host` starts engines (:mod:`engine_process`), replaces lost ones and changes their settings
(:mod:`supervisor`). An engine (:mod:`engine_main`) gets and gives :mod:`messages`; it makes its tasks from the
parameters (:mod:`configure`, :mod:`build`).

The node's process must not import PyTorch: only engines import :mod:`configure` and :mod:`torch_task`.
"""
