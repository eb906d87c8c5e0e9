"""What tests are made with: jobs and nodes to order, servers, processes, patience. It tests nothing itself."""
