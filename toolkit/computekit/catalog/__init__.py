"""Hardware and prices: data files with a source in each row."""
