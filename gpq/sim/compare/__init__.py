"""Many runs side by side, in processes, and what their results have in common."""
