"""What tests are built with: builders for jobs and servers, processes, patience. Tests nothing itself."""
