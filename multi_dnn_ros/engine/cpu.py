"""Runs inferences on a CPU: job by job, in the threads of the DNNs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.host import CPU
from multi_dnn_ros.backends.host import inference as inference_mode
from multi_dnn_ros.backends.static_stages import split_rows, stack_inputs
from multi_dnn_ros.engine.inference import STOPPED, Inference
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.slots import Slots
from multi_dnn_ros.engine.task import DnnTask


class CpuRunner:
    """Runs an inference to its end in the calling thread, which waits in the queue of `slots` before each job.

    A frame runs as one call of the whole network, which costs less than its jobs, while nobody waits and if nobody can
    have to overtake it: no other DNN by the policy, or each DNN has a slot.

    workers: number of jobs that run at the same time. tasks: returns all tasks with their current settings.
    """

    def __init__(
        self,
        workers: int,
        policy: Policy,
        tasks: Callable[[], Sequence[DnnTask]],
        clock: Callable[[], int],
        observer: Observer,
    ) -> None:
        self._workers = workers
        self._policy = policy
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._slots = Slots(workers, policy, clock)

    def run(self, inference: Inference) -> None:
        """Run the inference. An error, or the engine's end, is left in its `drop_cause`."""
        if not self._slots.acquire(inference):
            inference.drop_cause = STOPPED
            return
        try:
            with inference_mode():
                self._run(inference)
        finally:
            if inference.drop_cause is not STOPPED:
                self._slots.release()

    def close(self) -> None:
        """Let the frames that wait for a slot end without a result."""
        self._slots.close()

    def _run(self, inference: Inference) -> None:
        name = inference.task.name
        job, observed = 0, True
        self._observer.began(name)
        try:
            begin = self._clock()
            carried, stages = self._inputs(inference)
            inference.pre_ns = self._clock() - begin
            for job, stage in enumerate(stages):
                if job:
                    self._observer.ended(name)
                    observed = False
                    if not self._slots.keep(inference, job):
                        inference.drop_cause = STOPPED
                        return
                    self._observer.began(name)
                    observed = True
                begin = self._clock()
                carried = stage(carried)
                inference.compute_ns += self._clock() - begin
            inference.rows = split_rows(carried, sum(item.drop_cause is None for item in inference.items))
        except BaseException as error:  # whatever error a DNN raises, the thread must continue
            if is_device_failure(error):  # of a device that a backend uses, such as an accelerator of ONNX Runtime
                self._observer.device_failed(name, error)
            inference.fail(error, job)
        finally:
            if observed:
                self._observer.ended(name)

    def _inputs(self, inference: Inference) -> tuple[Tensors, Sequence[Stage]]:
        """The inputs of the first job, padded to the next available batch size, and the jobs."""
        task = inference.task
        images = list(inference.images(CPU, lambda error: False))
        batch, stages = task.stages_for(len(images))
        whole = task.single_launch.get(batch)
        if whole is not None and self._may_run_whole(task):
            stages = (whole,)
        if batch == 1:
            return images[0], stages
        images += [images[-1]] * (batch - len(images))
        return stack_inputs(images, stages[0]), stages

    def _may_run_whole(self, task: DnnTask) -> bool:
        if self._slots.has_waiting:
            return False
        others = [other for other in self._tasks() if other.name != task.name]
        return self._workers > len(others) or not any(self._policy.may_overtake(other, task) for other in others)
