"""The steps of a run: train steps, optimizer steps, epochs and evaluations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from ortrain import _ortrain
from ortrain.errors import InvalidArgumentError, OrtrainError
from ortrain.trainer import diagnosis
from ortrain.trainer.callbacks import Logs, TerminateOnNaN
from ortrain.trainer.data import Batch, Source, prefetched, rows_in
from ortrain.trainer.gradients import first_output
from ortrain.trainer.rate_search import Search
from ortrain.trainer.run import Array, Run
from ortrain.trainer.schedules import Schedule


class Loop(Run):
    """A run that takes steps."""

    def _begin_epoch(self) -> None:
        self._loss_sum, self._row_count, self._batch = 0.0, 0, 0
        for metric in self.metrics:
            metric.reset()
        self._call("on_epoch_begin", self.epoch, {})

    def _train_epoch(self, batches: Iterator[Batch], first: int) -> bool:
        """Take the steps of an epoch; return whether it was completed."""
        module, optimizer, gradients = self.module.train(), self.optimizer, self._gradients
        begin, end = self._methods("on_train_batch_begin"), self._methods("on_train_batch_end")
        accumulate, read = self.accumulate, self._read
        rate, losses = self._learning_rate, self._losses
        losses.clear()
        ends_on_nan = any(isinstance(callback, TerminateOnNaN) for callback in self._active)
        self._predictor = None
        for number, own in enumerate(batches, start=first):
            batch = self._rehearsed(own, number)
            for method in begin:
                method(number, {})
            try:
                outputs = gradients.compute(module, batch, read)
            except OrtrainError as error:
                self._explain(error, batch, self._columns)
                raise
            loss = self._count(outputs, batch)
            losses.append(loss)
            self._runs += 1
            self._micro += 1
            self._batch = number + 1
            if self.rehearsal is not None and self.epoch == 0:
                self.rehearsal.offer(own, self.seed)
            if ends_on_nan and not math.isfinite(loss):
                module.lazy_reset_grad()
                self._micro = 0
                self.stop_reason = f"the loss of batch {number + 1} of epoch {self.epoch + 1} was {loss}"
                return False
            if self._micro == accumulate:
                self._follow_schedule()
                rate = optimizer.get_learning_rate()
                self._optimizer_step(batch)
                self.step += 1
                self._micro = 0
            if end:
                logs: Logs = {"loss": loss, "learning_rate": rate}
                for method in end:
                    method(number, logs)
            if self.stop_training and self._micro == 0:
                return False
        if self._micro:  # fewer batches are left at the end of the epoch than a step accumulates
            self._follow_schedule()
            self._optimizer_step(batch)
            self.step += 1
            self._micro = 0
        if self._batch == 0:
            raise ValueError(f"data: expected at least one batch in epoch {self.epoch + 1}, found none")
        return True

    def _count(self, outputs: Any, batch: Batch) -> float:
        """Add a train step to loss and metrics of the epoch; return its loss, or the mean so far for a step without rows."""
        if outputs is None:
            return self._loss_sum / self._row_count if self._row_count else 0.0
        several = isinstance(outputs, (tuple, list))
        loss = float((outputs[0] if several else outputs).item())
        rows = rows_in(batch)
        self._loss_sum += loss * rows
        self._row_count += rows
        for metric, prediction, target in self._bound:
            metric.update(outputs[prediction] if several else outputs, batch[target], loss)
        return loss

    def _rehearsed(self, batch: Batch, number: int) -> Batch:
        """Return a batch with rows of earlier runs, if there is a buffer of such rows."""
        if self.rehearsal is None:
            return batch
        return self.rehearsal.mixed(batch, self.seed, self.epoch, number)

    def _follow_schedule(self) -> None:
        """Set the rate of the next optimizer step."""
        if not isinstance(self._schedule, Schedule):
            rate = self._learning_rate * self._schedule(self.step, self._total_steps)
            self.optimizer.set_learning_rate(rate)
        elif not self._schedule.is_constant:
            # Not a scheduler object: the feature cache needs to be the only owner of the optimizer.
            _ortrain.scheduler_step(self.optimizer._handle)

    def _report_to_schedule(self, logs: Logs) -> None:
        """Pass the monitored value of an epoch to a schedule that follows it."""
        schedule = self._schedule
        if not isinstance(schedule, Schedule) or not schedule.reads_value:
            return
        monitor = schedule.monitor or ("val_loss" if "val_loss" in logs else "loss")
        if monitor not in logs:
            raise ValueError(
                f"schedule {schedule.name}: expected monitor among {', '.join(logs)}, found {monitor!r}"
            )
        _ortrain.scheduler_report(self.optimizer._handle, float(logs[monitor]))

    def _search(self, search: Search, source: Source) -> None:
        """Take the steps of a search for a learning rate."""
        _ortrain.set_seed(self.seed)
        module, gradients, epoch = self.module.train(), self._gradients, 0
        module.lazy_reset_grad()
        gradients.begin(None, {})
        while True:
            for batch in source.batches(epoch, 0):
                rate = search.next_rate
                if rate is None:
                    return
                outputs = gradients.compute(module, batch, ())
                if not search.take(rate, float(first_output(outputs).item())):
                    return
                self.optimizer.set_learning_rate(rate)
                gradients.complete(module)
                try:
                    self.optimizer.step()
                except OrtrainError as error:
                    if "not finite" not in str(error):
                        raise
                    return
                module.lazy_reset_grad()
            epoch += 1

    def _optimizer_step(self, batch: Batch) -> None:
        try:
            self._gradients.complete(self.module)
            self.optimizer.step()
        except OrtrainError as error:
            if "not finite" not in str(error):
                raise
            rate = self.optimizer.get_learning_rate()
            reason = diagnosis.of_gradients(self._losses, rate, self.inputs.names, batch, self._columns)
            self.module.lazy_reset_grad()  # the trainer can still be used and saved afterwards
            self._micro = 0
            summary = error.message.split("\n")[0].removesuffix(":")
            raise OrtrainError(
                f"epoch {self.epoch + 1}, batch {self._batch}: {reason}. {summary}", error.code
            ) from error
        self.module.lazy_reset_grad()

    def _explain(
        self,
        error: OrtrainError,
        batch: Batch,
        columns: Sequence[Array] | None,
        *,
        is_validation: bool = False,
    ) -> None:
        """If the data caused an error, raise an error that names their fault."""
        reason = diagnosis.of_step(
            error, self.inputs.names, batch, columns, is_validation=is_validation, classes=self.classes
        )
        if reason is not None:
            raise InvalidArgumentError(f"{reason}.\n{error.message}", error.code) from error

    def _end_epoch(self) -> Logs:
        logs: Logs = {"loss": self._loss_sum / self._row_count if self._row_count else math.nan}
        logs |= {metric.name: metric.result() for metric in self.metrics}
        logs["learning_rate"] = self.optimizer.get_learning_rate()
        logs |= self._gradients.values()
        if self._validation is not None:
            # The validation uses the same sums of loss and metrics; those of the epoch are no longer needed.
            logs |= {f"val_{name}": value for name, value in self._test(self._validation, 0).items()}
        self._report_to_schedule(logs)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
        epoch = self.epoch
        self.epoch += 1
        self._batch = 0
        self._call("on_epoch_end", epoch, logs)
        return logs

    def _test(self, source: Source, prefetch: int | None) -> dict[str, Any]:
        if not self._eval_outputs:
            raise ValueError(f"evaluate: expected an eval model, found no eval_model.onnx in {self.folder}")
        self._call("on_test_begin", {})
        kept = [metric.state() for metric in self.metrics]
        for metric in self.metrics:
            metric.reset()
        end = self._methods("on_test_batch_end")
        module, several = self.module.eval(), len(self._eval_outputs) > 1
        loss_sum, count = 0.0, 0
        try:
            with closing(
                prefetched(source.batches(0, 0), source.prefetch if prefetch is None else prefetch)
            ) as batches:
                for number, batch in enumerate(batches):
                    try:
                        outputs = module(*batch)
                    except OrtrainError as error:
                        self._explain(error, batch, source.columns, is_validation=source is self._validation)
                        raise
                    loss = float((outputs[0] if several else outputs).item())
                    if not math.isfinite(loss):
                        wrong = diagnosis.not_finite(
                            self.inputs.names, batch, source.columns, source is self._validation
                        )
                        if wrong is not None:
                            warnings.warn(f"{wrong}; the loss on these data is {loss}", stacklevel=2)
                    rows = rows_in(batch)
                    loss_sum += loss * rows
                    count += rows
                    for metric, prediction, target in self._bound:
                        metric.update(outputs[prediction] if several else outputs, batch[target], loss)
                    if end:
                        self.last_batch, self.last_outputs = batch, outputs if several else (outputs,)
                    for method in end:
                        method(number, {"loss": loss})
            logs: Logs = {"loss": loss_sum / count if count else math.nan}
            logs |= {metric.name: metric.result() for metric in self.metrics}
        finally:
            self.last_batch = self.last_outputs = ()
            module.train()
            for metric, state in zip(self.metrics, kept, strict=True):
                metric.load_state(state)
        self._call("on_test_end", logs)
        return logs
