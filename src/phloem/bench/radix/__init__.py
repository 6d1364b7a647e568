"""`phloem bench radix`: what the scheduler's tree and queue cost, by size, beside matching and sorting the whole queue at each pass."""
