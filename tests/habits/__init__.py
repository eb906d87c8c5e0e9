"""The table of habits: what ordinary training loops do, each in every shape, compared with plain PyTorch without gpq."""
