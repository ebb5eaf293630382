"""`headrace explain`: what a run of a file would do (`story`), and how that is drawn (`formats`)."""
