"""Where files are stored: URLs, locks, output paths and the types of files. `runtime.files` opens the files.

remote          opens URLs such as `gs://bucket/name`
locks           prevents two processes from doing the same work in a directory
output_checks   checks output paths
first_bytes     detects compression and text encoding from the first bytes of a file
"""
