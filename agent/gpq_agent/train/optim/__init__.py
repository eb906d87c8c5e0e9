"""Makes one real step per optimizer step, at the rate of its batch. Schedulers see the base
rate."""
