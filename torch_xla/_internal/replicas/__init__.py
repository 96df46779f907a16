"""The processes of a program: who they are, how they meet, and SPMD mode."""
