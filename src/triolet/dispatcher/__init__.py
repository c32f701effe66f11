"""Token ids to text to the right stream. In: TokensSampled, RequestFinished. Out: deltas into sinks, StopMatched."""
