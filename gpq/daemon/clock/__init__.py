"""The time and the epoch of this daemon. A reign is the time from one start to the next."""
