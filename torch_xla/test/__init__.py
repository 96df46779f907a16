"""Helpers of training scripts."""
