"""Pages of results: one self-contained HTML file per table, two cells side by side, and an index of all of them.

    source.py    what a page is about: a cell, or a bare table
    views.py     which figures belong to which table, as rows of data
    drawing.py   a view and a table -> figures
    table.py     the table as data for the page's script
    origin.py    question, settings and origin in words
    page.py      the pages;  write.py  the files

No torch and no model is loaded: a page is made of the files of its cell.
"""

from interp.report.views import VIEWS, View
from interp.report.write import write_all, write_pages

__all__ = ["VIEWS", "View", "write_all", "write_pages"]
