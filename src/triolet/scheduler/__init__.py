"""Who runs in the next step, on which KV blocks. In: Admit, BatchResult, StopMatched. Out: ScheduledBatch, TokensSampled, RequestFinished."""
