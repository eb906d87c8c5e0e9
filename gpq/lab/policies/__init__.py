"""Mathematics on arrays: knapsack, assignment, Pareto fronts, genetic search. Knows no job."""
