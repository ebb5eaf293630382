"""`headrace explain`: describes what a run of a file would do (`build`), in several formats (`formats`)."""
