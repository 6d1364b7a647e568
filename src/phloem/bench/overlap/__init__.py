"""`phloem bench overlap`: how much of its time a device is idle when everything but the device is real."""
