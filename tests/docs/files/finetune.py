"""A program that ends at once."""

import sys

sys.stdout.write("finetune is done\n")
