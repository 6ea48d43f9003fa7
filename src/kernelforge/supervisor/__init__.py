"""Runs of the search in processes of their own: what was asked, how far they are, and how they are told to end."""
