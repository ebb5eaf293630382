"""The same work by other tools, for `make bench-peers`. Their processes import nothing of Headrace."""
