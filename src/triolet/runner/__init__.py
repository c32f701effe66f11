"""One device, one worker. In: ScheduledBatch. Out: BatchResult, RunnerReady, RunnerFailed."""
