"""What tests of several folders share, and the programs of `make conformance` with them."""
