"""The table of habits: what ordinary training loops do, each in every shape, held against plain PyTorch without gpq."""
