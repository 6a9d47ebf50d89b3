"""Where the engine runs, as the node sees it: in processes of its own that are supervised, or in the node's process.

The node's process imports no PyTorch. These do, and belong to the process of the engine: :mod:`configure`,
:mod:`served_engine`, :mod:`pinned`, :mod:`warm_up`, :mod:`memory_use`; :mod:`engine_main` and :mod:`local_host` import
them when they need them.
"""
