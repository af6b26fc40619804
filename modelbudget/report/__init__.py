"""The results as one HTML file that opens from disk with no network.

Templates, styles and the script are files of their own under `templates/`; what is computed for
them stands here, one subject a file.
"""
