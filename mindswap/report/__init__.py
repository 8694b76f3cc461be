"""Parts that the reports of several commands share: tables, HTML frame, timelines, pictures, problems as text.

The report of one command is in its package below `features/`. Nothing is decided here.
"""
