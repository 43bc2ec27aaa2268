"""gwatch."""
