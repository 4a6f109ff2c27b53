"""The lake beside what one would write by hand, and beside itself as history grows."""
