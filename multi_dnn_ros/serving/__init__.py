"""The interface to an engine, which runs in supervised processes of its own or in the node's process.

Interface: :mod:`host`; implementations: :mod:`process_host` and :mod:`local_host`. In the node's process
:mod:`camera_decoder` decodes images into shared memory (:mod:`slots`), and :mod:`accounts` counts what became of every
frame. :mod:`engine_main` is the program of an engine process, :mod:`wire` its protocol; :mod:`supervision` decides when
a process is replaced. Each device has its own processes and supervision: :mod:`prepared_engines` starts them,
:mod:`frame_dispatcher` distributes the frames of a DNN over its devices, :mod:`result_order` restores their order.

The node's process must not import PyTorch. Only the engine's process imports :mod:`configure`, :mod:`served_engine`,
:mod:`pinned`, :mod:`warm_up`, :mod:`memory_use` and :mod:`place`; :mod:`engine_main` and :mod:`local_host` import them
on demand.
"""
