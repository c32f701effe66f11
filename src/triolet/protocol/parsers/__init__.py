"""A model's text in; reasoning, content and tool calls out. Pure, linear, for any chunking."""
