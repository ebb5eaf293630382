"""`headrace explain`: what a run of a file would do (`build`), and how that is drawn (`formats`)."""
