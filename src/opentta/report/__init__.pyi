from .study.study import Study as Study
from .study.study import load_study as load_study
from .tables.table import Table as Table
from .tables.table import build_table as build_table
from .write import write_report as write_report
