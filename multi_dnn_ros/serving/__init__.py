"""Serves the DNNs of the node with supervised engines, in processes of their own or in the node's process.

In the node's process :mod:`camera_decoder` decodes images into shared memory (:mod:`slots`), :mod:`ledger` keeps the
account of every frame, and :mod:`host` is the node's face of the engines. :mod:`supervisor` replaces lost engines
(:mod:`hang_detector`) and changes their settings (:mod:`swap`). An engine gets and gives :mod:`messages`:
:mod:`local_engine` handles them, in the program of an engine process (:mod:`engine_main`, started by
:mod:`engine_process`) or in the node's process.

The node's process must not import PyTorch: only engines import :mod:`configure` and :mod:`pinned`.
"""
