"""`phloem bench overlap`: how much of its time a device waits for plans when everything but the device is real."""
