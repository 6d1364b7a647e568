"""`phloem bench quality`: what rounding a model's weights costs it."""
