"""Runs, their requests, keys and checks as text."""
