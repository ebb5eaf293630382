"""Plugins: code of other packages that a pipeline file can name. Nothing of them is imported before a file, or a setting, names one."""
