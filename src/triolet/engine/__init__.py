"""The nursery tree, and the object a caller holds. In: prompts. Out: streams of outputs."""
