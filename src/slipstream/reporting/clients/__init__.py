"""Clients and their settings as text."""
