"""Cases are no tests of pytest's; links in them may lead in a circle."""

collect_ignore = ["cases"]
