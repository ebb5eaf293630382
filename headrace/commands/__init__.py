"""What the verbs of the command line do.

Each module is imported when its verb is called, so that `--help` stays quick.
"""
