"""Run a notebook: `python run_notebook.py NOTEBOOK FOLDER` writes it, with outputs, to FOLDER.

In a process of its own, so that what Jupyter closes late disturbs no test; the kernel is talked to
through files in FOLDER, so that no port is opened.
"""

import sys

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

notebook, folder = nbformat.read(sys.argv[1], as_version=4), sys.argv[2]
manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
where = {"metadata": {"path": folder}}
NotebookClient(notebook, km=manager, timeout=250, resources=where).execute()
nbformat.write(notebook, f"{folder}/run.ipynb")
