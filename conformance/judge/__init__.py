"""Which questions an implementation is asked, in what order, by which processes; the report and its replay."""
