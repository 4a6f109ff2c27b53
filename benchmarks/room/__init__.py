"""The waiting room: joins and polls, against the least that a script can do, and against a rank per poll."""
