"""The peers, each behind the same few commands on its standard input."""
