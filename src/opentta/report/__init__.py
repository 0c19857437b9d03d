"""Tables, figures and one page, from stored results alone."""
