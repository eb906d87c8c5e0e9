"""Published policies, one file each. No policy knows another one.

`sizing.py` and `packing.py` are shared, and `genetic_search.py` is plain mathematics.
Open `tiresias.py` for the smallest one.
"""
