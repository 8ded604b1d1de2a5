"""The files that the steps of a build read, and the questions that sources ask without reading a file.

The entry is `reads_of_step` in `files_read.py`: it collects what compilers list and what only flags and sources show.
"""
