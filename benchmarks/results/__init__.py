"""A result as data, and how it is printed, plotted and compared."""
